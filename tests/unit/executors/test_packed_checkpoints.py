"""Checkpoints packed by AutoAWQ, AutoGPTQ, GPTQModel and compressed-tensors mean what those libraries say."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from services.artifacts.artifact import open_artifact
from services.artifacts.errors import ArtifactError
from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.native_models import load_native
from worker.executors.native.library import Compute
from worker.executors.torch_executor import load_torch_executor
from worker.executors.weights.loader import open_model

FIXTURES = Path(__file__).parent / "fixtures" / "packed"
FORMS = {
    "awq": (4, 32),
    "gptq_v1": (4, 64),
    "gptq_v1_int8": (8, 32),
    "gptq_v2": (4, 32),
    "gptq_act_order": None,
    "w4a16": (4, 32),
    "w4a16_asym": (4, 64),
    "w8a16": (8, None),
}
"""Bits and group (None: the row) as executors see them; columns in order of activation have no such form."""
ROUNDED = ("awq", "gptq_v1", "gptq_v2", "w4a16_asym", "w8a16")
"""Fixtures with scales or offsets that are no float16, in which the native executor keeps them."""
MODULES = {
    **{role: f"self_attn.{role}_proj" for role in "qkvo"},
    **{role: f"mlp.{role}_proj" for role in ("gate", "up", "down")},
}
W4 = {"num_bits": 4, "group_size": 32}
UP = "model.layers.0.mlp.up_proj"


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    def copy_of(name: str) -> Path:
        return Path(shutil.copytree(FIXTURES / name, tmp_path / name))

    return copy_of


def edit(folder: Path, changes: dict[str, np.ndarray | None], **settings: Any) -> Path:
    """Replace or (None) remove tensors, and change keys of quantization_config."""
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: array for name, array in tensors.items() if array is not None}, path)
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text())
    config["quantization_config"] |= settings
    config_path.write_text(json.dumps(config))
    return folder


def tensor(folder: Path, name: str) -> np.ndarray:
    return load_file(folder / "model.safetensors")[name]


@pytest.mark.failure("B117")
@pytest.mark.parametrize("name", FORMS)
def test_products_equal_those_of_the_library_that_packed(name: str) -> None:
    expected = load_file(FIXTURES / name / "expected.safetensors")
    _, weights = open_model(open_artifact(FIXTURES / name))
    for role, module in MODULES.items():
        values = weights.read(f"layers.0.{role}")
        probe = expected[f"x{values.shape[1]}"].astype(np.float64)
        np.testing.assert_allclose(probe @ values.T, expected[module], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "form"), FORMS.items())
def test_codes_are_what_floats_are_made_of(name: str, form: tuple[int, int | None] | None) -> None:
    _, weights = open_model(open_artifact(FIXTURES / name))
    for role in MODULES:
        matrix = weights.read_quantized(f"layers.0.{role}")
        if form is None or matrix is None:
            assert form is matrix is None
        else:
            assert (matrix.bits, matrix.group) == (form[0], form[1] or matrix.codes.shape[1])
            np.testing.assert_array_equal(matrix.to_float32(), weights.read(f"layers.0.{role}"))


def torch_logits(folder: Path) -> np.ndarray:
    executor = load_torch_executor(folder, model_name="tiny", num_threads=1)
    executor.allocate(4)
    return logits_of(executor, [Part(list(range(20)), 0, [0, 1])])


def native_logits(folder: Path, cache: Path) -> np.ndarray:
    executor = load_native(folder, cache, compute=Compute.F32)
    executor.allocate(4)
    return logits_of(executor, [Part(list(range(20)), 0, [0, 1])])


def floats_of(name: str, folder: Path) -> Path:
    """Save the model that a fixture stands for, as float32."""
    _, weights = open_model(open_artifact(FIXTURES / name))
    kept = {
        key: value
        for key, value in load_file(FIXTURES / name / "model.safetensors").items()
        if "_proj" not in key
    }
    floats = {
        f"model.layers.0.{module}.weight": weights.read(f"layers.0.{role}")
        for role, module in MODULES.items()
    }
    folder.mkdir()
    save_file(kept | floats, folder / "model.safetensors")
    config = json.loads((FIXTURES / name / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.timeout(600)  # the first native model compiles the library
@pytest.mark.parametrize("name", FORMS)
def test_a_packed_model_runs_as_the_floats_it_stands_for(name: str, tmp_path: Path) -> None:
    expected = torch_logits(floats_of(name, tmp_path / "plain"))
    assert np.abs(expected).max() > 0.5
    np.testing.assert_array_equal(torch_logits(FIXTURES / name), expected)
    native = native_logits(FIXTURES / name, tmp_path)
    atol = 5e-4 * np.abs(expected).max() if name in ROUNDED else 1e-4
    np.testing.assert_allclose(native, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("name", "scales"),
    [("awq", "scales"), ("gptq_v1", "scales"), ("gptq_v2", "scales"), ("w4a16", "weight_scale")],
)
def test_a_damaged_scale_is_refused(copy: Callable[[str], Path], name: str, scales: str) -> None:
    folder = copy(name)
    damaged = tensor(folder, f"{UP}.{scales}").copy()
    damaged[-1, 1] = np.inf
    _, weights = open_model(open_artifact(edit(folder, {f"{UP}.{scales}": damaged})))
    for read in (weights.read, weights.read_quantized):
        with pytest.raises(ArtifactError, match=rf"model\.safetensors: tensor .*up_proj\.{scales} holds NaN"):
            read("layers.0.up")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(("awq", part) for part in ("qweight", "qzeros", "scales")),
        *(("gptq_v1", part) for part in ("qweight", "qzeros", "scales", "g_idx")),
        *(("w4a16_asym", part) for part in ("weight_packed", "weight_scale", "weight_zero_point")),
    ],
)
def test_a_wrong_axis_is_refused(copy: Callable[[str], Path], name: str, part: str) -> None:
    folder = copy(name)
    key = f"{UP}.{part}"
    turned = np.ascontiguousarray(np.atleast_2d(tensor(folder, key)).T)
    with pytest.raises(
        ArtifactError, match=rf"model\.safetensors: tensor .*up_proj\.{part} (has shape|does not)"
    ):
        open_model(open_artifact(edit(folder, {key: turned})))


@pytest.mark.failure("B118")
@pytest.mark.parametrize("name", ["awq", "gptq_v1", "w4a16"])
def test_a_group_tail_is_refused(copy: Callable[[str], Path], name: str) -> None:
    folder = copy(name)
    settings: dict[str, Any] = {"group_size": 48}
    if name == "w4a16":
        groups = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"]
        groups["group_0"]["weights"]["group_size"] = 48
        settings = {"config_groups": groups}
    with pytest.raises(ArtifactError, match=r"tensor .*q_proj\..*: 64 columns are not whole groups of 48"):
        open_model(open_artifact(edit(folder, {}, **settings)))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("awq", "qzeros"),
        ("gptq_v2", "scales"),
        ("w4a16_asym", "weight_zero_point"),
        ("w8a16", "weight_shape"),
    ],
)
def test_a_missing_part_is_named(copy: Callable[[str], Path], name: str, part: str) -> None:
    folder = edit(copy(name), {f"{UP}.{part}": None})
    with pytest.raises(ArtifactError, match=rf"model\.safetensors: tensor {UP}\.{part} is missing beside"):
        open_model(open_artifact(folder))


@pytest.mark.parametrize("name", ["awq", "gptq_v1", "w4a16"])
def test_a_missing_matrix_is_named(copy: Callable[[str], Path], name: str) -> None:
    folder = copy(name)
    parts = [key for key in load_file(folder / "model.safetensors") if key.startswith(UP)]
    with pytest.raises(ArtifactError, match=rf"tensor {UP}\.weight is missing"):
        open_model(open_artifact(edit(folder, dict.fromkeys(parts))))


@pytest.mark.parametrize(
    ("name", "part"), [("awq", "scales"), ("gptq_v1", "qzeros"), ("w4a16", "weight_packed")]
)
def test_a_missing_shard_is_named(copy: Callable[[str], Path], name: str, part: str) -> None:
    folder = copy(name)
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    weight_map = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    weight_map[f"{UP}.{part}"] = "model-00002-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(
        ArtifactError, match=r"model-00002-of-00002\.safetensors: named by the index and missing"
    ):
        open_artifact(folder)


def test_a_part_that_symmetric_packing_does_not_have_is_left_over(copy: Callable[[str], Path]) -> None:
    folder = edit(copy("w4a16"), {f"{UP}.weight_zero_point": np.zeros((16, 2), np.int32)})
    with pytest.raises(ArtifactError, match=rf"tensor {UP}\.weight_zero_point has no place"):
        open_model(open_artifact(folder))


def test_biases_of_zeros_that_autogptq_adds_are_ignored_and_others_are_not(
    copy: Callable[[str], Path],
) -> None:
    bias = np.zeros(128, np.float16)
    folder = edit(copy("gptq_v1"), {f"{UP}.bias": bias})
    open_model(open_artifact(folder))
    with pytest.raises(ArtifactError, match=rf"tensor {UP}\.bias has no place"):
        open_model(open_artifact(edit(folder, {f"{UP}.bias": bias + 1})))


def test_zero_points_of_version_1_wrap_in_their_own_four_bits(copy: Callable[[str], Path]) -> None:
    folder = copy("gptq_v1")
    zeros = np.full_like(tensor(folder, f"{UP}.qzeros"), -1)  # 15 everywhere: a zero point of 0, less one
    _, weights = open_model(open_artifact(edit(folder, {f"{UP}.qzeros": zeros})))
    matrix = weights.read_quantized("layers.0.up")
    assert matrix is not None
    assert not matrix.offsets.any()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("awq", {"quant_method": "hqq"}, "quant_method = 'hqq'; supported: awq, gptq, compressed-tensors"),
        ("awq", {"quant_method": None}, "quant_method = None"),
        ("awq", {"version": "gemv"}, "version = 'gemv'"),
        ("awq", {"bits": 3}, "bits = 3"),
        ("gptq_v1", {"bits": 3}, "bits = 3; supported: 4, 8"),
        ("gptq_v1", {"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
        ("gptq_v1", {"dynamic": {"+:.*": {"bits": 8}}}, "dynamic"),
        ("gptq_v1", {"group_size": 8}, "groups of 8 columns"),
        ("w4a16", {"format": "int-quantized"}, "format = 'int-quantized'; supported: 'pack-quantized'"),
        ("w4a16", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        ("w4a16", {"config_groups": {}}, "needs config_groups"),
        ("w4a16", {"config_groups": {"g": {"targets": ["x"], "weights": W4}}}, "no group for it"),
        (
            "w4a16",
            {"config_groups": {"g": {"weights": W4, "input_activations": {"num_bits": 8}}}},
            "input_activations = {'num_bits': 8}; supported: none, 8-bit int",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_its_key(
    copy: Callable[[str], Path], name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        open_model(open_artifact(edit(copy(name), {}, **settings)))
