"""Printed plans are pinned: a change of what a family computes shows as a diff of a text file."""

from pathlib import Path
from typing import Any

import pytest

from worker.models.registry import build_model
from worker.plan.op import render

GOLDEN = Path(__file__).parent / "golden"
SIZES = {
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}

GEMMA3 = {
    "model_type": "gemma3_text",
    "head_dim": 4,
    "query_pre_attn_scalar": 4,
    "sliding_window": 16,
    "sliding_window_pattern": 2,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llama", {"model_type": "llama", "tie_word_embeddings": True}),
        ("llama_biases", {"model_type": "llama", "attention_bias": True, "mlp_bias": True}),
        ("gemma3", GEMMA3),
        ("mistral", {"model_type": "mistral", "sliding_window": 16}),
        ("qwen2", {"model_type": "qwen2"}),
        ("qwen3", {"model_type": "qwen3", "head_dim": 4}),
    ],
)
def test_the_printed_plan_is_the_golden_one(name: str, config: dict[str, Any]) -> None:
    assert render(build_model({**SIZES, **config}).plan) == (GOLDEN / f"{name}.txt").read_text()
