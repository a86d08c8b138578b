"""SentencePiece models give the ids of sentencepiece itself, from tokenizer.model and from GGUF metadata."""

import base64
import json
from pathlib import Path

import pytest
from artifact_builders import num_controls

from services.artifacts.errors import ArtifactError
from services.artifacts.folder_tokenizer import tokenizer_from_folder
from services.artifacts.gguf_tokenizer import tokenizer_from_gguf
from services.artifacts.sentencepiece_model import parse_sentencepiece
from services.artifacts.tokenizer import ModelTokenizer

GOLDEN = json.loads((Path(__file__).parent / "sentencepiece_bpe.json").read_text())
"""A tiny BPE model with byte fallback, as Llama's, and what sentencepiece itself makes of some texts."""
TOOL_ID = GOLDEN["tool_id"]


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spm") / "tokenizer.model"
    path.write_bytes(base64.b64decode(GOLDEN["model_base64"]))
    return path


@pytest.fixture(scope="module")
def sentencepiece_tokenizers(sentencepiece_model: Path) -> dict[str, ModelTokenizer]:
    """The same vocabulary read from tokenizer.model and from GGUF metadata."""
    pieces = parse_sentencepiece(sentencepiece_model.read_bytes(), "m")
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces.tokens,
        "tokenizer.ggml.scores": pieces.scores,
        "tokenizer.ggml.token_type": pieces.kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return {
        "folder": tokenizer_from_folder(sentencepiece_model.parent, {}),
        "gguf": tokenizer_from_gguf(metadata, "m.gguf"),
    }


@pytest.mark.parametrize("source", ["folder", "gguf"])
@pytest.mark.parametrize(("text", "expected"), [(t, ids) for t, ids in GOLDEN["ids"] if TOOL_ID not in ids])
def test_sentencepiece_models_give_the_reference_ids(
    sentencepiece_tokenizers: dict[str, ModelTokenizer], source: str, text: str, expected: list[int]
) -> None:
    ours = sentencepiece_tokenizers[source]

    ids = ours.encode_text(text, add_bos=True)

    assert ids == [1, *expected]
    assert ours.decode(ids) == " " + text


@pytest.mark.parametrize(("text", "expected"), [(t, ids) for t, ids in GOLDEN["ids"] if TOOL_ID in ids])
def test_user_defined_pieces_are_matched_whole(
    sentencepiece_tokenizers: dict[str, ModelTokenizer], text: str, expected: list[int]
) -> None:
    assert sentencepiece_tokenizers["folder"].encode_text(text, add_bos=False) == expected


@pytest.mark.failure("B097")
def test_sentencepiece_text_never_becomes_a_control_id(
    sentencepiece_tokenizers: dict[str, ModelTokenizer],
) -> None:
    for ours in sentencepiece_tokenizers.values():
        assert ours.special_tokens.keys() >= {"<s>", "</s>", "<unk>"}
        ids = ours.encode_text("<s>x</s><unk>", add_bos=False)
        assert num_controls(ours, ids) == 0
        assert ours.decode(ids) == " <s>x</s><unk>"
        assert ours.eos_ids == {2}


def test_bytes_of_fallback_tokens_join_to_characters(
    sentencepiece_tokenizers: dict[str, ModelTokenizer],
) -> None:
    ours = sentencepiece_tokenizers["gguf"]

    ids = ours.encode_text("\U0001f1e9", add_bos=False)

    assert b"".join(map(ours.token_bytes, ids)) == " \U0001f1e9".encode()
    assert len(ids) == 5


def test_a_unigram_or_damaged_sentencepiece_model_is_refused(sentencepiece_model: Path) -> None:
    data = sentencepiece_model.read_bytes()
    with pytest.raises(ArtifactError, match=r"damaged SentencePiece|only BPE"):
        parse_sentencepiece(data[: len(data) // 2 + 1][:-3] + b"\xff", "m")
    with pytest.raises(ArtifactError, match="only BPE"):
        parse_sentencepiece(b"\x0a\x03\x0a\x01a\x12\x02\x18\x01", "m")
