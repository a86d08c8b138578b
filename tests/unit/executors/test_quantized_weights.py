"""Codes, scales and offsets are the numbers that the same tensor dequantises to."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from services.artifacts.artifact import open_artifact
from services.artifacts.errors import ArtifactError
from services.artifacts.gguf_file import read_gguf
from services.artifacts.tensors import FORMATS, TensorRef
from tests.unit.executors.tiny_models import make_model, save_folder, save_gguf
from worker.executors.weights.ggml_blocks import decode_blocks
from worker.executors.weights.loader import open_model
from worker.executors.weights.quantized import QuantizedMatrix

FORMS = {
    "Q8_0": (8, 32),
    "Q4_0": (4, 32),
    "Q4_1": (4, 32),
    "Q5_0": (8, 32),
    "Q5_1": (8, 32),
    "Q4_K": (4, 32),
    "Q5_K": (8, 32),
    "Q6_K": (8, 16),
}
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Byte offsets of the 16-bit floats in a block; elsewhere there is one, at its beginning."""


def random_tensor(path: Path, kind: str, *, rows: int = 6, columns: int = 512) -> TensorRef:
    """Return a tensor of random blocks: any code and small scale, and floats of every sign and exponent."""
    draw = np.random.default_rng(sum(kind.encode()))
    size = FORMATS[kind]
    blocks = draw.integers(0, 256, (rows * columns // size.block_size, size.block_bytes), np.uint8)
    for offset in HALVES.get(kind, (0,)):
        bits = draw.integers(0, 1 << 16, len(blocks)).astype("<u2")
        bits[(bits & 0x7C00) == 0x7C00] &= 0xBFFF
        blocks[:, offset : offset + 2] = bits.view(np.uint8).reshape(-1, 2)
    writer = gguf.GGUFWriter(path / f"{kind}.gguf", "llama")
    writer.add_tensor("t", blocks.reshape(rows, -1), raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path / f"{kind}.gguf").tensors["t"]


@pytest.mark.parametrize("kind", FORMS)
def test_codes_give_exactly_what_the_tensor_dequantises_to(tmp_path: Path, kind: str) -> None:
    tensor = random_tensor(tmp_path, kind)
    matrix = decode_blocks(tensor)
    assert matrix is not None
    assert (matrix.bits, matrix.group) == FORMS[kind]
    assert int(matrix.codes.max()) < 1 << matrix.bits
    np.testing.assert_array_equal(matrix.to_float32(), tensor.to_float32())


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K"])
def test_formats_without_such_a_form_have_no_codes(tmp_path: Path, kind: str) -> None:
    assert decode_blocks(random_tensor(tmp_path, kind)) is None


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_every_matrix_of_a_model_reads_alike_as_codes_and_as_floats(tmp_path: Path, family: str) -> None:
    path = save_gguf(make_model(family), tmp_path / "model.gguf", "Q4_1", {"v_proj": "Q8_0"})
    model, weights = open_model(open_artifact(path))
    for name, shape in model.plan.parameters.items():
        matrix = weights.read_quantized(name)
        assert (matrix is None) == (len(shape) == 1)
        if isinstance(matrix, QuantizedMatrix):
            np.testing.assert_array_equal(matrix.to_float32(), weights.read(name))


def test_floats_have_no_codes(tmp_path: Path) -> None:
    model, weights = open_model(open_artifact(save_folder(make_model("llama"), tmp_path)))
    assert {weights.read_quantized(name) for name in model.plan.parameters} == {None}


@pytest.mark.parametrize(
    ("kind", "offset"), [(kind, offset) for kind in FORMS for offset in HALVES.get(kind, (0,))]
)
def test_a_damaged_scale_or_minimum_is_refused_by_file_and_tensor(
    tmp_path: Path, kind: str, offset: int
) -> None:
    model = make_model("llama", hidden_size=256, intermediate_size=512)
    path = save_gguf(model, tmp_path / "model.gguf", kind)
    tensor = read_gguf(path).tensors["blk.1.ffn_up.weight"]
    where = path.read_bytes().index(tensor.raw().tobytes())
    with path.open("r+b") as file:
        file.seek(where + offset)
        file.write(b"\x00\x7e")  # a 16-bit NaN
    _, weights = open_model(open_artifact(path))
    for read in (weights.read_quantized, weights.read):
        with pytest.raises(ArtifactError, match=r"model\.gguf: tensor blk\.1\.ffn_up\.weight holds NaN"):
            read("layers.1.up")


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_1"])
def test_a_wrong_axis_is_refused_by_file_and_tensor(tmp_path: Path, kind: str) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "model.gguf", kind)
    name = b"blk.1.ffn_up.weight"
    where = path.read_bytes().index(name) + len(name) + 4
    with path.open("r+b") as file:
        file.seek(where)
        turned = np.frombuffer(file.read(16), "<u8")[::-1]
        file.seek(where)
        file.write(turned.tobytes())
    with pytest.raises(
        ArtifactError, match=r"model\.gguf: tensor blk\.1\.ffn_up\.weight has shape \[64, 96\], .* \[96, 64\]"
    ):
        open_model(open_artifact(path))
