"""What ranks read of their weights: side by side it is the whole, whatever the file holds it in."""

from pathlib import Path

import numpy as np
import pytest

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.artifacts.errors import ArtifactError
from services.artifacts.tensors import TensorRef
from tests.unit.executors.test_packed_checkpoints import FIXTURES, FORMS
from tests.unit.executors.tiny_models import make_model, save_folder, save_gguf
from worker.executors.weights.loader import WeightSource, open_model, shard_model
from worker.models.registry import BuiltModel
from worker.plan.shard import Span, WeightPart

Rank = tuple[BuiltModel, WeightSource]


def ranks_of(artifact: ModelArtifact, size: int) -> list[Rank]:
    model, weights = open_model(artifact)
    return [shard_model(model, weights, rank=rank, size=size) for rank in range(size)]


def joined(parts: list[np.ndarray], whole: np.ndarray) -> np.ndarray:
    """Put what ranks hold together: along the axis that is cut, equal neighbours once."""
    axis = next((axis for axis in range(whole.ndim) if parts[0].shape[axis] < whole.shape[axis]), None)
    if axis is None:
        return parts[0]
    copies = len(parts) * parts[0].shape[axis] // whole.shape[axis]
    for first in range(0, len(parts), copies):
        for other in parts[first + 1 : first + copies]:
            np.testing.assert_array_equal(other, parts[first])
    return np.concatenate(parts[::copies], axis)


def check_floats(artifact: ModelArtifact, size: int) -> None:
    model, weights = open_model(artifact)
    ranks = ranks_of(artifact, size)
    for name in model.plan.parameters:
        whole = weights.read(name)
        parts = []
        for own, source in ranks:
            if name in own.plan.parameters:
                parts.append(source.read(name))
                assert parts[-1].shape == own.plan.parameters[name]
        np.testing.assert_array_equal(joined(parts, whole), whole, err_msg=name)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", ["gemma3", "llama", "mistral", "qwen2", "qwen3"])
def test_floats_of_every_family_side_by_side_are_the_whole(family: str, size: int, tmp_path: Path) -> None:
    check_floats(open_artifact(save_folder(make_model(family), tmp_path)), size)


def test_biases_of_summed_products_are_read_by_rank_0_alone(tmp_path: Path) -> None:
    path = save_folder(make_model("llama", attention_bias=True, mlp_bias=True), tmp_path)
    check_floats(open_artifact(path), 2)
    first, second = (own.plan.parameters for own, _ in ranks_of(open_artifact(path), 2))
    assert set(first) - set(second) == {f"layers.{n}.{role}_bias" for n in (0, 1) for role in ("o", "down")}


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1"])
def test_blocks_and_permuted_heads_of_gguf_are_cut_between_heads_and_blocks(
    kind: str, tmp_path: Path
) -> None:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    path = save_gguf(make_model("llama", **shape), tmp_path / "tiny.gguf", kind)
    artifact = open_artifact(path)
    check_floats(artifact, 2)
    _, weights = open_model(artifact)
    for name in ("layers.1.q", "layers.1.k", "layers.1.down"):
        whole = weights.read_quantized(name)
        parts = [source.read_quantized(name) for _, source in ranks_of(artifact, 2)]
        if whole is None:
            assert parts == [None, None]
            continue
        for field in ("codes", "scales", "offsets"):
            values = [getattr(part, field) for part in parts]
            np.testing.assert_array_equal(joined(values, getattr(whole, field)), getattr(whole, field))


@pytest.mark.parametrize("name", [name for name in FORMS if name != "gptq_v1"])
def test_packed_checkpoints_are_cut_between_words_and_groups(name: str) -> None:
    """Groups of 64 that a cut of 64 columns goes through are exact too: both halves have its scale."""
    check_floats(open_artifact(FIXTURES / name), 2)


@pytest.mark.failure("B118")
def test_a_border_inside_a_block_is_refused_by_name(tmp_path: Path) -> None:
    path = save_gguf(make_model("llama", intermediate_size=96), tmp_path / "tiny.gguf", "Q8_0")
    (_, source), _ = ranks_of(open_artifact(path), 2)
    with pytest.raises(ArtifactError, match=r"ffn_down\.weight: columns 0 to 48 are not whole blocks of 32"):
        source.read("layers.0.down")


@pytest.mark.failure("B118")
@pytest.mark.parametrize(
    ("name", "part", "says"),
    [
        ("w4a16", WeightPart(columns=Span(8, 16)), "columns 8 to 16 cannot be cut out: 16 of them"),
        ("gptq_act_order", WeightPart(columns=Span(0, 4)), "columns 0 to 4 cannot be cut out: 8 of them"),
        ("awq", WeightPart(rows=Span(4, 8)), "rows 4 to 8 cannot be cut out: 8 of them"),
    ],
)
def test_a_border_inside_a_group_or_word_is_refused_by_name(name: str, part: WeightPart, says: str) -> None:
    model, weights = open_model(open_artifact(FIXTURES / name))
    source = weights.for_rank(model, {"layers.0.o": part})
    with pytest.raises(ArtifactError, match=rf"model\.safetensors: tensor .*o_proj.*: {says}"):
        source.read("layers.0.o")


def test_a_group_that_is_cut_becomes_smaller_ones() -> None:
    # Four ranks of 16 inputs each; groups were 32.
    parts = [
        source.read_quantized("layers.0.o") for _, source in ranks_of(open_artifact(FIXTURES / "w4a16"), 4)
    ]
    assert [part.group for part in parts if part] == [16] * 4
    whole = open_model(open_artifact(FIXTURES / "w4a16"))[1].read("layers.0.o")
    np.testing.assert_array_equal(np.concatenate([part.to_float32() for part in parts if part], 1), whole)


def test_a_rank_looks_at_nothing_but_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_folder(make_model("llama"), tmp_path)
    read: list[tuple[str, tuple[int, ...]]] = []
    to_float32 = TensorRef.to_float32

    def recorded(self: TensorRef) -> np.ndarray:
        read.append((self.name, self.shape))
        return to_float32(self)

    own, source = ranks_of(open_artifact(path), 2)[1]
    monkeypatch.setattr(TensorRef, "to_float32", recorded)
    for name in ("embedding", "layers.0.up", "layers.0.down"):
        source.read(name)
    assert [shape for _, shape in read] == [
        own.plan.parameters[name] for name in ("embedding", "layers.0.up", "layers.0.down")
    ]
    assert [shape for _, shape in read] == [(48, 64), (48, 64), (64, 48)]
