"""How attention's kernels are cut: the committed table `paged_attention_tuning.json` by chip, head and KV.

What was measured on a chip says when and on what; a chip that never was is labelled `untuned` and has tiles
that spill nothing. Nothing is measured while serving; `python -m bench.tune` writes the table.

Knows the table and nothing of what is launched.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

TABLE = Path(__file__).with_suffix(".json")
UNTUNED = "untuned"

Kernel = Literal["ragged", "decode"]
KERNELS: tuple[Kernel, ...] = ("ragged", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How a kernel is cut. The sizes that decide in what order keys are summed are not here."""

    m: int
    """Rows of queries, of all heads of a group: raised to the heads of a group where those are more."""
    num_warps: int
    num_stages: int


def key(head_dim: int, *, is_int8: bool) -> str:
    """Return the name under which the table keeps a shape: heads of up to 128 or 256, over floats or int8."""
    return f"d{256 if head_dim > 128 else 128}-{'int8' if is_int8 else 'float'}"


@cache
def tile(chip: str, kernel: Kernel, head_dim: int, *, is_int8: bool) -> Tile:
    """Return the tile of a kernel.

    Args:
        chip: One of `aot.CHIPS`.
        kernel: `ragged` for prefill and mixed batches, `decode` for one query of each sequence.
        head_dim: Numbers of a head, at most 256.
        is_int8: Whether KV is int8.
    """
    return Tile(**_table()[chip][kernel][key(head_dim, is_int8=is_int8)])


def label(chip: str) -> str:
    """Return when and on what the chip's entries were measured, or `untuned`."""
    return str(_table()[chip]["measured"] or UNTUNED)


def numerics(chip: str) -> str:
    """Return a digest of the chip's tiles: warps and rows may decide how a compiler adds up a row."""
    tiles = {name: part for name, part in _table()[chip].items() if name != "measured"}
    return hashlib.sha256(json.dumps([chip, tiles], sort_keys=True).encode()).hexdigest()[:16]


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table
