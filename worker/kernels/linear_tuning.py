"""Which tiles a product is launched with: the committed table `linear_tuning.json` by chip, format and shape.

`python -m bench.tune` measures on a chip and writes an entry for each shape that it was given, and when and
on what. The entry for all other shapes is never measured, and a chip that never was is labelled `untuned`.
Nothing is measured while serving.

`splits` and `block_k` decide bits, so they are a shape's, whatever the number of rows; all else is free per
step of the ladder.

Knows the table and nothing of what is launched.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".json")
UNTUNED = "untuned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How one product is launched."""

    block_n: int
    """Rows of W of a program."""
    block_m: int
    """Rows of x of a program."""
    block_k: int
    """Columns of one step of the sum."""
    splits: int
    """Pieces of K that are summed by themselves."""
    is_parallel: bool
    """Whether each piece has a program of its own, which costs room for its sums."""
    num_warps: int
    num_stages: int


def label(chip: str) -> str:
    """Return when and on what the chip's entries were measured, or `untuned`."""
    return str(_table()[chip]["measured"] or UNTUNED)


def tile(chip: str, kind: str, *, out_features: int, in_features: int, num_rows: int) -> Tile:
    """Return the tile for a product.

    Args:
        chip: One of `aot.CHIPS`.
        kind: `fp32`, `bf16` (any dense 16-bit), or a quantised one with its group, such as `w8a16-g64`,
            `w4a16-g128`, `w8a8-g32`.
        out_features: Rows of W.
        in_features: Columns of W.
        num_rows: Rows of x.
    """
    entry = _entry(chip, kind, out_features, in_features)
    step = next((step for step in entry["ladder"] if num_rows <= step["rows"]), entry["ladder"][-1])
    splits = entry.get("splits") or default_splits(
        out_features, in_features, block_n=entry["ladder"][0]["block_n"], programs=entry["programs"]
    )
    # With many rows there are programs enough: one sums all pieces, and nothing is written twice.
    return _tile(entry, step, splits, is_parallel=splits > 1 and num_rows <= entry["parallel_rows"])


def most_parallel_rows(chip: str, kind: str, *, out_features: int, in_features: int) -> int:
    """Return up to how many rows of x the pieces of K may have programs of their own."""
    rows: int = _entry(chip, kind, out_features, in_features)["parallel_rows"]
    return rows


def default_splits(out_features: int, in_features: int, *, block_n: int, programs: int) -> int:
    """Return into how many pieces K is cut so that a few rows occupy a chip; a function of the shape alone.

    The least power of two that gives so many programs; pieces stay at least 512 columns long.

    Worked number: 4096 x 4096 in tiles of 64 rows, 99 programs wanted: 64 tiles, so 2 splits make 128.
    """
    splits = 1
    while splits * -(-out_features // block_n) < programs and in_features // (2 * splits) >= 512:
        splits *= 2
    return splits


def kinds(chip: str) -> list[str]:
    """Return the formats that a chip has entries for."""
    return sorted(_table()[chip]["kinds"])


def shapes(chip: str, kind: str) -> list[str]:
    """Return what a format has entries for: `OUTxIN` where it was measured, and `*` for the rest, last."""
    return [entry["shape"] for entry in _table()[chip]["kinds"][kind]]


def ladder(chip: str, kind: str, shape: str = "*") -> list[Tile]:
    """Return every tile that a shape's entry may be launched with, for compiling them ahead of time.

    K whole, and in two pieces, which stand for more: their number only ends a loop. Worked number: up to 16
    rows, 64 rows and any number, pieces apart up to 64: three tiles of K whole, two of one piece each, and
    one that sums both.
    """
    entry = next(entry for entry in _table()[chip]["kinds"][kind] if entry["shape"] == shape)
    fixed, apart = entry.get("splits"), entry["parallel_rows"]
    found: list[Tile] = []
    least = 1
    for step in entry["ladder"]:
        if fixed in (None, 1):
            found.append(_tile(entry, step, splits=1, is_parallel=False))
        if fixed != 1 and least <= apart:
            found.append(_tile(entry, step, splits=2, is_parallel=True))
        if fixed != 1 and step["rows"] > apart:
            found.append(_tile(entry, step, splits=2, is_parallel=False))
        least = step["rows"] + 1
    return list(dict.fromkeys(found))


def row_steps() -> list[int]:
    """Return the rows of x up to which some product of some chip keeps to one tile, ascending."""
    entries = [entry for part in _table().values() for entries in part["kinds"].values() for entry in entries]
    rows = {step["rows"] for entry in entries for step in entry["ladder"]}
    return sorted(rows | {entry["parallel_rows"] for entry in entries})


def numerics(chip: str) -> str:
    """Return a digest of everything in the chip's part that decides bits."""
    decisive = {
        kind: [
            [
                entry["shape"],
                entry["block_k"],
                entry.get("splits"),
                entry["programs"],
                entry["ladder"][0]["block_n"],
            ]
            for entry in entries
        ]
        for kind, entries in _table()[chip]["kinds"].items()
    }
    return hashlib.sha256(json.dumps([chip, decisive], sort_keys=True).encode()).hexdigest()[:16]


def _entry(chip: str, kind: str, out_features: int, in_features: int) -> dict[str, Any]:
    """Return the entry of a shape, else the one for all shapes, which comes last."""
    entries: list[dict[str, Any]] = _table()[chip]["kinds"][kind]
    shape = f"{out_features}x{in_features}"
    return next(entry for entry in entries if entry["shape"] in (shape, "*"))


def _tile(entry: dict[str, Any], step: dict[str, Any], splits: int, *, is_parallel: bool) -> Tile:
    return Tile(
        block_n=step["block_n"],
        block_m=step["block_m"],
        block_k=entry["block_k"],
        splits=splits,
        is_parallel=is_parallel,
        num_warps=step["num_warps"],
        num_stages=step["num_stages"],
    )


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table
