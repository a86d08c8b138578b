"""GGUF files: what they declare, their numbers, and what happens when they are damaged."""

from pathlib import Path

import numpy as np
import pytest
from artifact_builders import random_values, write_gguf
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from services.artifacts.artifact import ArtifactKind, open_artifact
from services.artifacts.errors import ArtifactError
from services.artifacts.tensors import FORMATS, tensor_at

EMBEDDING = {"token_embd.weight": ("F32", random_values(8, 256))}


def test_the_real_model_declares_its_config(model_path: Path) -> None:
    artifact = open_artifact(model_path)

    assert artifact.kind is ArtifactKind.GGUF
    assert len(artifact.tensors) == 272
    expected = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "intermediate_size": 1536,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "max_position_embeddings": 8192,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "attention_bias": False,
    }
    assert {key: artifact.config[key] for key in expected} == expected
    assert artifact.config["rms_norm_eps"] == pytest.approx(1e-5)
    assert artifact.eos_ids == {2}
    assert artifact.tokenizer.bos_id == 1
    assert artifact.tensors["blk.0.ffn_down.weight"].shape == (576, 1536)
    assert artifact.tensors["blk.0.ffn_down.weight"].dtype == "Q4_1"
    assert artifact.tensors["blk.0.attn_norm.weight"].dtype == "F32"


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_written_format_reads_back_as_the_reference_does(kind: str, tmp_path: Path) -> None:
    values = random_values(6, 256)
    path = write_gguf(tmp_path / "m.gguf", {**EMBEDDING, "w": (kind, values)})

    tensor = open_artifact(path).tensors["w"]

    packed = quantize(values, GGMLQuantizationType[kind])
    assert tensor.dtype == kind
    assert tensor.shape == (6, 256)
    assert tensor.raw().tobytes() == packed.tobytes()
    np.testing.assert_array_equal(
        tensor.to_float32(), dequantize(packed, GGMLQuantizationType[kind]).reshape(6, 256)
    )


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_read_as_the_reference_does(kind: str) -> None:
    blocks = np.random.default_rng(1).integers(0, 256, (4, 2 * FORMATS[kind].block_bytes), np.uint8)
    # Scales are halves anywhere in a block: keep every byte pair a finite half.
    blocks &= 0x7B

    tensor = tensor_at(blocks.ravel(), 0, name="w", file=Path("x"), dtype=kind, shape=(4, 512))

    np.testing.assert_array_equal(tensor.to_float32(), dequantize(blocks, GGMLQuantizationType[kind]))


@pytest.mark.failure("B115")
def test_tensors_of_different_formats_live_in_one_file(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        {
            **EMBEDDING,
            "q": ("Q8_0", random_values(4, 64)),
            "v": ("Q4_0", random_values(4, 64)),
            "n": ("F16", random_values(64)),
        },
    )

    tensors = open_artifact(path).tensors

    assert [tensors[name].dtype for name in "qvn"] == ["Q8_0", "Q4_0", "F16"]


@pytest.mark.failure("B115")
def test_an_unsupported_tensor_type_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"odd.weight": ("F32", random_values(2, 256))})
    data = bytearray(path.read_bytes())
    at = data.index(b"odd.weight") + len(b"odd.weight") + 4 + 2 * 8
    data[at : at + 4] = (99).to_bytes(4, "little")
    path.write_bytes(data)

    with pytest.raises(
        ArtifactError, match=r"m\.gguf: tensor odd\.weight has the unsupported type ggml type 99"
    ):
        open_artifact(path)


@pytest.mark.failure("B118")
@pytest.mark.parametrize(("kind", "num_columns"), [("Q4_0", 48), ("Q6_K", 160)])
def test_rows_that_leave_a_tail_are_refused_by_file_and_tensor(
    kind: str, num_columns: int, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"odd.weight": ("F32", random_values(4, num_columns))})
    data = bytearray(path.read_bytes())
    at = data.index(b"odd.weight") + len(b"odd.weight") + 4 + 2 * 8
    data[at : at + 4] = int(GGMLQuantizationType[kind]).to_bytes(4, "little")
    path.write_bytes(data)

    with pytest.raises(
        ArtifactError, match=rf"m\.gguf: rows of tensor odd\.weight .* not whole blocks of {kind}"
    ):
        open_artifact(path)


def test_a_part_of_a_split_file_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "m-00002-of-00003.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

    with pytest.raises(ArtifactError, match=r"m-00002-of-00003\.gguf: part 2 of 3 of a split file"):
        open_artifact(path)


def test_a_truncated_file_is_refused_naming_file_and_tensor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {**EMBEDDING, "last.weight": ("F32", random_values(4, 256))})
    path.write_bytes(path.read_bytes()[:-2000])

    with pytest.raises(ArtifactError, match=r"m\.gguf: truncated, tensor last\.weight"):
        open_artifact(path)


@pytest.mark.parametrize("keep", [0, 3, 10, 60, 300])
def test_a_file_cut_inside_its_header_is_refused_in_one_line(keep: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", EMBEDDING)
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(ArtifactError) as caught:
        open_artifact(path)

    assert "m.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_llama3_rope_factors_move_from_tensor_to_config(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    path = write_gguf(tmp_path / "m.gguf", {**EMBEDDING, "rope_freqs.weight": ("F32", factors)})

    artifact = open_artifact(path)

    assert "rope_freqs.weight" not in artifact.tensors
    assert artifact.config["rope_scaling"] == {"rope_type": "factors", "factors": factors.tolist()}


@pytest.mark.failure("B109")
def test_linear_and_yarn_scaling_are_declared(tmp_path: Path) -> None:
    from gguf import RopeScalingType

    path = write_gguf(
        tmp_path / "m.gguf",
        EMBEDDING,
        rope_scaling_type=RopeScalingType.YARN,
        rope_scaling_factor=4.0,
        rope_scaling_orig_ctx_len=64,
    )

    assert open_artifact(path).config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }


@pytest.mark.failure("B108")
def test_a_llama_with_a_window_is_a_mistral(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": ("F32", random_values(8, 256))}
    plain = open_artifact(write_gguf(tmp_path / "plain.gguf", tensors)).config
    windowed = open_artifact(write_gguf(tmp_path / "window.gguf", tensors, sliding_window=64)).config
    assert (plain["model_type"], windowed["model_type"]) == ("llama", "mistral")
    assert windowed["sliding_window"] == 64


@pytest.mark.parametrize(("num_layers", "scalar"), [(1, 32), (62, 64)])
def test_the_scale_of_gemma_3_follows_from_its_size(num_layers: int, scalar: int, tmp_path: Path) -> None:
    tensors = {"token_embd.weight": ("F32", random_values(8, 256))}
    sizes = {"block_count": num_layers, "key_length": 32}
    config = open_artifact(write_gguf(tmp_path / "gemma.gguf", tensors, arch="gemma3", **sizes)).config
    assert config["query_pre_attn_scalar"] == scalar
    assert config["hidden_act"] == "gelu_pytorch_tanh"


def test_embeddings_are_tied_exactly_when_there_is_no_output_tensor(tmp_path: Path) -> None:
    tied = write_gguf(tmp_path / "tied.gguf", EMBEDDING)
    untied = write_gguf(
        tmp_path / "untied.gguf", {**EMBEDDING, "output.weight": ("F32", random_values(8, 256))}
    )

    assert open_artifact(tied).config["tie_word_embeddings"] is True
    assert open_artifact(untied).config["tie_word_embeddings"] is False


@pytest.mark.failure("B104")
def test_all_declared_ends_count(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", EMBEDDING, eos_token_id=5, eot_token_id=6, eom_token_id=7)

    assert open_artifact(path).declared_eos_ids == {5, 6, 7}


@pytest.mark.failure("B093")
def test_sampling_defaults_are_read(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", EMBEDDING, sampling_temp=0.5, sampling_top_k=20)

    assert open_artifact(path).generation_defaults == {"temperature": 0.5, "top_k": 20}


def test_the_revision_follows_the_bytes(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", EMBEDDING)
    before = open_artifact(path).revision
    assert open_artifact(path).revision == before
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    assert open_artifact(path).revision != before
    assert len(before) == 16


@pytest.mark.parametrize("name", ["weights.bin", "weights.pt"])
def test_other_files_are_not_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")

    with pytest.raises(ArtifactError, match=r"only model folders and \.gguf files"):
        open_artifact(tmp_path / name)


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        open_artifact(tmp_path / "none.gguf")
