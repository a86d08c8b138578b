"""Which tiny GGUF models executors are compared with transformers on: family by format by ratio of heads.

Each combination is a case; the normal pass takes some of them and the slow pass the rest. Knows names alone:
what an executor may lose in a format is its own test's.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.unit.executors.tiny_models import make_model

FAMILIES = ("llama", "mistral", "gemma3", "qwen2", "qwen3")
GGUF_FORMATS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
NUM_HEADS = 8
KV_HEADS = (8, 2, 1)
"""As many keys as queries, some and one: beside `NUM_HEADS`."""


def cases_of(kinds: Iterable[str], *, is_quick: Callable[[str, str, int], bool]) -> list[Any]:
    """Return every (family, format, KV heads); those that are not quick are marked slow."""
    return [
        pytest.param(*case, marks=[] if is_quick(*case) else pytest.mark.slow)
        for family in FAMILIES
        for kind in kinds
        for num_kv_heads in KV_HEADS
        for case in [(family, kind, num_kv_heads)]
    ]


def is_covering(family: str, kind: str, num_kv_heads: int) -> bool:
    """Whether a case is one of 11 that have every format once, every family and every ratio with several."""
    place = GGUF_FORMATS.index(kind)
    return FAMILIES[place % len(FAMILIES)] == family and KV_HEADS[place % len(KV_HEADS)] == num_kv_heads


def make_gguf_model(family: str, num_kv_heads: int) -> PreTrainedModel:
    """Return a tiny model whose matrices are whole blocks of every format."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 32, "num_attention_heads": NUM_HEADS}
    if family == "gemma3":
        sizes |= {"query_pre_attn_scalar": 32, "num_hidden_layers": 6}  # the sixth is a global one
    return make_model(family, **sizes, num_key_value_heads=num_kv_heads)
