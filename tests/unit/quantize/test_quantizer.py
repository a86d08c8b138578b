"""A model quantised to a folder reads back as what was rounded, whole or after a stop."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from services.artifacts.artifact import ModelArtifact, open_artifact
from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.native_models import load_native
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder
from worker.executors.native.library import Compute
from worker.executors.torch_executor import load_torch_executor
from worker.executors.weights.loader import open_model
from worker.quantize import quantizer
from worker.quantize.calibration import Turn
from worker.quantize.errors import QuantizeError
from worker.quantize.quantizer import LayerDone, quantize
from worker.quantize.settings import Method, QuantizeSettings

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma3"]
SEQUENCES = [np.random.default_rng(i).integers(0, VOCAB, 40).tolist() for i in range(6)]


def settings(bits: int = 4, method: Method = Method.RTN, group: int = 32) -> QuantizeSettings:
    return QuantizeSettings(bits=bits, group=group, method=method)


def with_tokenizer(folder: Path) -> Path:
    """Give a folder the files that must come along."""
    characters = [*map(chr, range(33, 127)), "Ġ", "Ċ"]  # a byte-level vocabulary's names of space and newline
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(characters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "A"}')
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> ModelArtifact:
    return open_artifact(with_tokenizer(save_folder(make_model("llama"), tmp_path / "llama")))


def logits(path: Path, ids: list[int] = SEQUENCES[0]) -> np.ndarray:
    executor = load_torch_executor(path, model_name="tiny", num_threads=1)
    executor.allocate(4)
    return logits_of(executor, [Part(ids, 0, [0, 1, 2])])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("method", [*Method])
@pytest.mark.parametrize("family", FAMILIES)
def test_at_eight_bits_every_family_says_what_it_said(tmp_path: Path, family: str, method: Method) -> None:
    source = with_tokenizer(save_folder(make_model(family), tmp_path / family))
    quantize(open_artifact(source), settings(8, method), SEQUENCES, tmp_path / "out")
    before, after = logits(source), logits(tmp_path / "out")
    assert 0 < np.abs(after - before).max() < 0.05 * np.abs(before).max()


@pytest.mark.timeout(600)  # the first native model compiles the library
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_made_is_served_natively_as_by_torch(tmp_path: Path, family: str, bits: int) -> None:
    source = with_tokenizer(save_folder(make_model(family), tmp_path / family))
    quantize(open_artifact(source), settings(bits), (), tmp_path / "out")
    executor = load_native(tmp_path / "out", tmp_path, compute=Compute.F32)
    executor.allocate(4)
    assert any(use.kernel.startswith(f"u{bits}") for use in executor.profile.kernels)
    ours, theirs = logits_of(executor, [Part(SEQUENCES[0], 0, [0, 1, 2])]), logits(tmp_path / "out")
    # Its scales are float16: 11 bits of each.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3 * np.abs(theirs).max())


@pytest.mark.slow
def test_a_gguf_file_becomes_a_folder_with_its_tokeniser_and_template(
    tmp_path: Path, model_path: Path
) -> None:
    artifact = open_artifact(model_path)
    quantize(artifact, settings(8, group=64), (), tmp_path / "out")
    made = open_artifact(tmp_path / "out")
    for text in ("Hello, world 2024!\n\tif x: 你好 👩‍👧", "  two  spaces"):
        assert made.tokenizer.encode_text(text, add_bos=True) == artifact.tokenizer.encode_text(
            text, add_bos=True
        )
    assert artifact.template is not None
    assert made.template is not None
    talk = [Turn("user", "Why?")]
    assert made.template.encode(talk) == artifact.template.encode(talk)
    assert made.eos_ids == artifact.eos_ids
    ids = artifact.template.encode(talk)
    chosen = [int(logits(path, ids)[-1].argmax()) for path in (model_path, tmp_path / "out")]
    assert chosen[0] == chosen[1]


def test_codes_in_the_folder_are_the_nearest_and_nothing_else_changed(
    tmp_path: Path, llama: ModelArtifact
) -> None:
    quantize(llama, settings(), (), tmp_path / "out")
    model, before = open_model(llama)
    _, after = open_model(open_artifact(tmp_path / "out"))
    for name, shape in model.plan.parameters.items():
        matrix = after.read_quantized(name)
        if len(shape) == 1 or name in ("embedding", "head"):
            np.testing.assert_array_equal(after.read(name), before.read(name))
            continue
        assert matrix is not None
        assert (matrix.bits, matrix.group) == (4, 32)
        off = np.abs(matrix.to_float32() - before.read(name))
        assert (off <= 0.501 * np.repeat(matrix.scales, 32, axis=1)).all()


def test_tokeniser_and_template_come_along(tmp_path: Path, llama: ModelArtifact) -> None:
    quantize(llama, settings(), (), tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (llama.path / name).read_bytes()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.pop("quantization_config")["format"] == "pack-quantized"
    assert config == json.loads((llama.path / "config.json").read_text())


def test_fixed_activation_scales_are_the_largest_inputs_over_the_text(
    tmp_path: Path, llama: ModelArtifact
) -> None:
    wanted = QuantizeSettings(bits=8, group=32, method=Method.RTN, has_static_activations=True)
    quantize(llama, wanted, SEQUENCES, tmp_path / "out")
    made = open_artifact(tmp_path / "out")
    # What enters the first layer's q, k and v is the normed embedding, whatever is rounded behind it.
    _, weights = open_model(llama)
    x = weights.read("embedding")[np.concatenate(SEQUENCES)]
    x = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * weights.read("layers.0.attention_norm")
    scale = made.tensors["model.layers.0.self_attn.q_proj.input_scale"].to_float32()
    np.testing.assert_allclose(scale, [np.abs(x).max() / 127], rtol=1e-5)
    _, again = open_model(made)
    assert again.read_quantized("layers.0.q") is not None


class Killed(BaseException):
    """Stands for a signal: nothing in between may catch it."""


def kill_after(layer: int) -> Callable[[LayerDone], None]:
    def on_layer(done: LayerDone) -> None:
        if done.layer == layer:
            raise Killed

    return on_layer


@pytest.mark.parametrize("method", [*Method])
def test_a_run_that_was_killed_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, llama: ModelArtifact, method: Method
) -> None:
    quantize(llama, settings(4, method), SEQUENCES, tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(Killed):
        quantize(llama, settings(4, method), SEQUENCES, out, kill_after(0))
    assert not out.exists()
    # What a kill in the middle of a write leaves behind.
    partial = tmp_path / "out.partial"
    (partial / "model-00002-of-00003.safetensors.unfinished").write_bytes(b"half")
    done: list[int] = []
    quantize(llama, settings(4, method), SEQUENCES, out, lambda layer: done.append(layer.layer))
    assert done == [1]
    assert contents(out) == contents(tmp_path / "whole")
    assert not partial.exists()


def test_a_kill_between_a_layers_shard_and_its_mark_does_that_layer_again(
    tmp_path: Path, llama: ModelArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize(llama, settings(4, Method.GPTQ), SEQUENCES, tmp_path / "whole")
    out = tmp_path / "out"
    save, marks = quantizer._Run._save_state, iter([False, True])

    def killed_at_the_second(self: quantizer._Run, layers_done: int) -> None:
        if next(marks):
            raise Killed
        save(self, layers_done)

    with monkeypatch.context() as patch:
        patch.setattr(quantizer._Run, "_save_state", killed_at_the_second)
        with pytest.raises(Killed):
            quantize(llama, settings(4, Method.GPTQ), SEQUENCES, out)
    quantize(llama, settings(4, Method.GPTQ), SEQUENCES, out)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_partial_run_with_other_settings_is_refused_by_the_setting(
    tmp_path: Path, llama: ModelArtifact
) -> None:
    with pytest.raises(Killed):
        quantize(llama, settings(4, Method.AWQ), SEQUENCES, tmp_path / "out", kill_after(0))
    with pytest.raises(QuantizeError, match=r"out\.partial: was begun with method = awq, now it is gptq"):
        quantize(llama, settings(4, Method.GPTQ), SEQUENCES, tmp_path / "out")
    with pytest.raises(QuantizeError, match=r"out\.partial: was begun with calibration = "):
        quantize(llama, settings(4, Method.AWQ), SEQUENCES[1:], tmp_path / "out")
    (tmp_path / "out.partial" / "state.json").write_text("{")
    with pytest.raises(QuantizeError, match=r"state\.json: damaged"):
        quantize(llama, settings(4, Method.AWQ), SEQUENCES, tmp_path / "out")


def test_a_partial_run_that_lost_its_activations_is_refused(tmp_path: Path, llama: ModelArtifact) -> None:
    with pytest.raises(Killed):
        quantize(llama, settings(4, Method.AWQ), SEQUENCES, tmp_path / "out", kill_after(0))
    (kept,) = (tmp_path / "out.partial" / "activations").glob("input-*")
    kept.write_bytes(kept.read_bytes()[:-4])
    with pytest.raises(QuantizeError, match=r"out\.partial: the inputs of layer 1 are missing"):
        quantize(llama, settings(4, Method.AWQ), SEQUENCES, tmp_path / "out")


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, llama: ModelArtifact) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(QuantizeError, match=r"out: exists"):
        quantize(llama, settings(), (), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.failure("B118")
def test_a_width_that_is_no_multiple_of_the_group_is_refused_before_anything_is_written(
    tmp_path: Path, llama: ModelArtifact
) -> None:
    message = r"--group 64: tensor model\.layers\.0\.mlp\.down_proj\.weight has 96 columns.*: 32"
    with pytest.raises(QuantizeError, match=message):
        quantize(llama, settings(group=64), (), tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(("bits", "group", "message"), [(4, 48, "--group 48"), (3, 64, "--to int3")])
def test_unknown_settings_are_refused_by_their_flag(bits: int, group: int, message: str) -> None:
    with pytest.raises(QuantizeError, match=message):
        settings(bits, group=group)


def test_no_layer_is_read_before_the_one_before_it_is_written(
    tmp_path: Path, llama: ModelArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded by one layer: the loader is asked for one layer's parameters at a time."""
    from worker.executors.weights.loader import WeightSource

    events: list[str] = []
    read = WeightSource.read

    def recorded(self: WeightSource, parameter: str) -> np.ndarray:
        events.append(parameter.split(".")[1] if "." in parameter else parameter)
        return read(self, parameter)

    monkeypatch.setattr(WeightSource, "read", recorded)
    quantize(
        llama,
        settings(4, Method.AWQ),
        SEQUENCES,
        tmp_path / "out",
        lambda done: events.append(f"done {done.layer}"),
    )
    assert list(dict.fromkeys(events))[:4] == ["0", "done 0", "1", "done 1"]
    assert "embedding" not in events
