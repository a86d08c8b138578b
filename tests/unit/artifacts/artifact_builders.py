"""Tiny models on disk, in both formats, for the tests of services.artifacts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from services.artifacts.tokenizer import ModelTokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and then it doesn't: 12345 times in 2024!",
    "def add(x, y):\n    return x + y  # not 'they'll' or \"we've\"\n\n\nclass A:\n\tpass",
    "日本語のテキスト と 中文文本。 Ünïcödé café naïve e\u0301 a\u0308 👩\u200d👩\u200d👧 🎉🎉",
    "  spaces   and\t\ttabs \r\n lines   ",
] * 3
"""What tiny vocabularies are trained on."""

TEXTS = [
    "Hello world",
    "It's 12345 and don't we'll they've 007 3.14",
    "  spaces   here \n\n\t x \r\n",
    "日本語テキスト、中文",
    "emoji 👩\u200d👩\u200d👧 🎉🎉 \U0001f1e9\U0001f1ea",
    "def f(x):\n    return x**2  # comment\n",
    "e\u0301 vs é, a\u0308 ñ ﬁ \u200b zero",
    "A's 'S LL'LL DON'T",
    "\x00 control \x7f \ufffd",
    " ",
    "x",
]
"""Digits, contractions, white space, CJK, emoji, code, combining marks, odd characters."""


@dataclass(frozen=True)
class Message:
    """A chat message."""

    role: str
    content: str
    name: str | None = None


def byte_level_vocabulary(size: int = 400) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train a byte-level BPE vocabulary on the corpus: token -> id, and merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def reference_byte_level(pre: Any, controls: list[str], *, ignore_merges: bool = False) -> Tokenizer:
    """Return the library's own byte-level BPE with control tokens `controls` and pre-tokenizer `pre`."""
    vocabulary, merges = byte_level_vocabulary()
    vocabulary = {**vocabulary, **{token: len(vocabulary) + i for i, token in enumerate(controls)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    return tokenizer


def gguf_metadata(
    pre: str | None = "gpt-2", controls: Sequence[str] = ("<|end|>",), **extra: Any
) -> dict[str, Any]:
    """Return a tokeniser's metadata as a byte-level GGUF file would hold it."""
    vocabulary, merges = byte_level_vocabulary()
    tokens = [*sorted(vocabulary, key=vocabulary.__getitem__), *controls]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(vocabulary) + [3] * len(controls),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        **extra,
    }
    return metadata if pre is None else {**metadata, "tokenizer.ggml.pre": pre}


def write_gguf(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]], **settings: Any) -> Path:
    """Write a GGUF file of a one-layer llama with tensors of the given formats."""
    writer = GGUFWriter(path, settings.pop("arch", "llama"))
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(512)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(settings.pop("rope_theta", 10000.0))
    for key, value in settings.items():
        getattr(writer, f"add_{key}")(value)
    for name, (kind, values) in tensors.items():
        quant = GGMLQuantizationType[kind]
        if kind in ("F32", "F16"):
            writer.add_tensor(name, values.astype(np.float32 if kind == "F32" else np.float16))
        else:
            writer.add_tensor(name, quantize(values.astype(np.float32), quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_values(*shape: int, seed: int = 0) -> np.ndarray:
    """Return float32 values around 0."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def num_controls(tokenizer: ModelTokenizer, ids: Iterable[int]) -> int:
    """Return how many of `ids` are control ids."""
    return sum(map(tokenizer.is_control, ids))
