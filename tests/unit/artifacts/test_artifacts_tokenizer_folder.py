"""Tokenisers of Hugging Face folders: what the files declare holds, and text never becomes a control id."""

import json
from pathlib import Path
from typing import Any

import pytest
from artifact_builders import TEXTS, byte_level_vocabulary, num_controls, reference_byte_level
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from services.artifacts.artifact import open_artifact
from services.artifacts.errors import ArtifactError
from services.artifacts.folder_tokenizer import tokenizer_from_folder


def save_folder(folder: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.failure("B096")
def test_a_folder_gives_the_reference_ids_and_its_declared_bos(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer = reference_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<s>", "</s>"])
    bos_id = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos_id)])
    folder = save_folder(tmp_path, tokenizer, bos_token="<s>", eos_token={"content": "</s>"})
    reference = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))

    ours = tokenizer_from_folder(folder, {})

    for text in TEXTS:
        assert ours.encode_text(text, add_bos=True) == reference.encode(text)
    assert ours.encode_text("<s>a", add_bos=True).count(bos_id) == 1
    assert ours.eos_ids == {tokenizer.token_to_id("</s>")}


@pytest.mark.failure("B097")
def test_tokens_that_only_the_config_calls_special_are_controls(tmp_path: Path) -> None:
    tokenizer = reference_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), [])
    tokenizer.add_tokens(["<|turn|>", "<think>"])
    folder = save_folder(
        tmp_path,
        tokenizer,
        added_tokens_decoder={
            str(tokenizer.token_to_id("<|turn|>")): {"content": "<|turn|>", "special": True}
        },
    )

    ours = tokenizer_from_folder(folder, {})

    assert num_controls(ours, ours.encode_text("<|turn|>", add_bos=False)) == 0
    assert ours.encode_rendered("<|turn|>") == [tokenizer.token_to_id("<|turn|>")]
    assert ours.encode_text("<think>", add_bos=False) == [tokenizer.token_to_id("<think>")]
    assert ours.token_bytes(tokenizer.token_to_id("<think>")) == b"<think>"


@pytest.mark.failure("B097")
def test_controls_that_merges_would_make_are_spelled_out(tmp_path: Path) -> None:
    vocabulary, merges = byte_level_vocabulary()
    size = len(vocabulary)
    vocabulary |= {"<s": size, "<s>": size + 1}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("<", "s"), ("<s", ">"), *merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    folder = save_folder(tmp_path, tokenizer)

    ours = tokenizer_from_folder(folder, {})

    ids = ours.encode_text("a<s>b", add_bos=False)
    assert num_controls(ours, ids) == 0
    assert ours.decode(ids) == "a<s>b"


def test_the_longest_of_many_control_tokens_counts(tmp_path: Path) -> None:
    names = ["<x", "<x>", "<x>y", "[x]", ".*", *(f"<unused{number}>" for number in range(200))]
    tokenizer = reference_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), [])
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    folder = save_folder(tmp_path, tokenizer)

    ours = tokenizer_from_folder(folder, {})

    text = "<x>y<x>z<xz[x]x.*<unused1><unused19><unused199><unused200><unused"
    ids = ours.encode_rendered(text)
    assert ids == tokenizer.encode(text).ids
    assert num_controls(ours, ids) == 8


def test_white_space_that_a_control_token_swallows_is_gone(tmp_path: Path) -> None:
    tokenizer = reference_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), [])
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, rstrip=True, normalized=False)])
    folder = save_folder(tmp_path, tokenizer)

    ours = tokenizer_from_folder(folder, {})

    text = "a<|end|> \n b<|end|>"
    assert ours.encode_rendered(text) == tokenizer.encode(text).ids


def test_a_prefix_space_comes_once_when_the_scheme_says_first(tmp_path: Path) -> None:
    vocabulary = {token: index for index, token in enumerate(["<unk>", "▁", "a", "b", "▁a", "▁b"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("▁", "b")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    folder = save_folder(tmp_path, tokenizer)

    ours = tokenizer_from_folder(folder, {})

    for text in ("a b", "<s>a b", "a<s>b", "<s> a"):
        assert ours.encode_rendered(text) == tokenizer.encode(text).ids, text


def test_a_folder_without_a_readable_tokeniser_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no tokenizer\.json and no tokenizer\.model"):
        tokenizer_from_folder(tmp_path, {})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: not a readable tokeniser"):
        tokenizer_from_folder(tmp_path, {})


def test_a_scheme_that_has_no_bytes_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()

    with pytest.raises(ArtifactError, match="neither byte-level nor SentencePiece"):
        tokenizer_from_folder(save_folder(tmp_path, tokenizer), {})


@pytest.mark.failure("B104")
def test_an_artifacts_ends_include_the_tokenisers(tmp_path: Path) -> None:
    tokenizer = reference_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|end|>"])
    save_folder(tmp_path, tokenizer, eos_token="<|end|>")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5]}))
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)

    assert open_artifact(tmp_path).eos_ids == {3, 4, 5, tokenizer.token_to_id("<|end|>")}
