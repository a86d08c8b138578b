"""Tokenisers that several files use: a tiny one, and the real model's as the reference library runs it."""

from pathlib import Path
from typing import Any

import pytest
from template_builders import tiny_tokenizer

from services.artifacts.gguf_file import read_gguf
from services.artifacts.tokenizer import ModelTokenizer


@pytest.fixture(scope="session")
def tiny() -> ModelTokenizer:
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def reference(model_path: Path) -> Any:
    """SmolLM2's tokenizer.json in transformers: its published pre-tokeniser around the file's vocabulary.

    Transformers' own GGUF reader would not do: it ignores `tokenizer.ggml.pre`, so digits are not split off.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    metadata = read_gguf(model_path).metadata
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=tokens[1], eos_token=tokens[2])
