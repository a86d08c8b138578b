"""The shapes that are measured: those of the table, and small ones that an interpreter can compute.

Knows numbers alone.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the worker process serves and is asked for."""

    config: dict[str, Any]
    """`config.json` of its model."""
    num_prompt: int
    num_output: int
    num_cancelled: int
    """Tokens asked for by the request that is cancelled after its first."""
    flags: tuple[str, ...]
    """Of the worker, beside those that every run needs."""
    limit_s: float
    """For each thing that is waited for; only for failure."""
    executor: str = "triton"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Shapes of all rows."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    decode_sequences: int
    decode_context: int
    prefill_tokens: int
    features: int
    """Rows and columns of the products' weights."""
    few_rows: tuple[int, ...]
    many_rows: int
    group: int
    """Columns that share a scale."""
    copies: int
    """Weights that take turns, so that none stays in a cache."""
    copy_bytes: int
    """Of the buffer by which bandwidth is measured."""
    matrix: int
    """Rows, columns and depth of the product by which the matrix rate is measured."""
    model: dict[str, Any]
    """`config.json` of the whole model."""
    step: tuple[int, int]
    """Sequences and context of the decode step."""
    compared_step: tuple[int, int]
    """The same where INT4 is compared with bf16."""
    prefill_chunk: int
    """Tokens in a step that fills the pages."""
    checked_model: dict[str, Any]
    """Small enough for the torch executor on a CPU."""
    checked_step: tuple[int, int]
    """Sequences and context of the steps that are compared with it."""
    served: Served


LLAMA3_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""Source: Llama 3's config.json."""

TABLE = Sizes(
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    decode_sequences=64,
    decode_context=8192,
    prefill_tokens=8192,
    features=8192,
    few_rows=(1, 2, 4, 8, 16),
    many_rows=4096,
    group=128,
    copies=8,
    copy_bytes=2 << 30,
    matrix=8192,
    model=LLAMA3_8B,
    step=(64, 1024),
    compared_step=(16, 2048),
    prefill_chunk=4096,
    # Heads and widths of the 8B, whose kernels are compiled anyhow.
    checked_model={
        **LLAMA3_8B,
        "intermediate_size": 1024,
        "num_hidden_layers": 1,
        "vocab_size": 1024,
        "max_position_embeddings": 1024,
    },
    checked_step=(2, 600),
    served=Served(
        # Heads, groups and widths of the 8B, whose kernels are compiled by then; two layers of it.
        config={
            **LLAMA3_8B,
            "num_hidden_layers": 2,
            "intermediate_size": 4096,
            "vocab_size": 32768,
            "tie_word_embeddings": True,
        },
        num_prompt=1000,
        num_output=64,
        num_cancelled=4000,
        flags=("--kv-memory", "2GiB", "--max-context-tokens", "8192", "--max-sequences", "16"),
        limit_s=90.0,
    ),
)
_TINY_MODEL = {
    **LLAMA3_8B,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}
TINY = Sizes(
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    decode_sequences=2,
    decode_context=40,
    prefill_tokens=24,
    features=128,
    few_rows=(1, 3),
    many_rows=20,
    group=64,
    copies=2,
    copy_bytes=1 << 12,
    matrix=32,
    model=_TINY_MODEL,
    step=(2, 20),
    compared_step=(2, 20),
    prefill_chunk=32,
    checked_model=_TINY_MODEL,
    checked_step=(2, 20),
    served=Served(
        config=_TINY_MODEL,
        num_prompt=20,
        num_output=2,
        num_cancelled=40,
        flags=(
            *("--kv-memory", "1MiB", "--stuck-after-s", "600", "--restart-after-s", "600"),
            *("--max-sequences", "2", "--max-step-tokens", "16", "--max-prefill-tokens", "16"),
        ),
        limit_s=300.0,
    ),
)
"""For the interpreter: every line of the script runs, and no figure means anything."""
