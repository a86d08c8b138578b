"""The tables of tiles as text, line for line as they are committed, and what a measurement changes in them.

Knows the files' form; knows nothing of how a tile was found.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.tune.search import Rung
from worker.kernels.linear_tuning import Tile as LinearTile
from worker.kernels.paged_attention_tuning import Tile as AttentionTile

Table = dict[str, Any]


def linear_text(table: Table) -> str:
    """Return the table of products: one line for each rung."""
    return _text(table, _kinds_text)


def attention_text(table: Table) -> str:
    """Return the table of attention: one line for each shape."""
    return _text(table, _kernels_text)


def with_linear(
    table: Table, chip: str, kind: str, shape: str, rungs: Sequence[Rung], tiles: Sequence[LinearTile]
) -> Table:
    """Return the table with the measured entry of a shape, which replaces an older one.

    Args:
        table: As it is.
        chip: One of `aot.CHIPS`.
        kind: A format.
        shape: `OUTxIN`.
        rungs: In the order of rows.
        tiles: One for each rung.
    """
    changed = copy.deepcopy(table)
    entries = changed[chip]["kinds"][kind]
    of_all = next(entry for entry in entries if entry["shape"] == "*")
    parallel = [rung.rows for rung, tile in zip(rungs, tiles, strict=True) if tile.is_parallel]
    entry = {
        "shape": shape,
        "block_k": tiles[0].block_k,
        "splits": tiles[0].splits,
        "programs": of_all["programs"],
        "parallel_rows": max(parallel, default=0),
        "ladder": [
            {
                "rows": rung.rows,
                "block_n": tile.block_n,
                "block_m": tile.block_m,
                "num_warps": tile.num_warps,
                "num_stages": tile.num_stages,
            }
            for rung, tile in zip(rungs, tiles, strict=True)
        ],
    }
    kept = [each for each in entries if each["shape"] not in (shape, "*")]
    changed[chip]["kinds"][kind] = [*kept, entry, of_all]
    return changed


def with_attention(table: Table, chip: str, kernel: str, key: str, tile: AttentionTile) -> Table:
    """Return the table with the measured tile of a kernel and shape."""
    changed = copy.deepcopy(table)
    changed[chip][kernel][key] = {"m": tile.m, "num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return changed


def with_label(table: Table, chip: str, label: str) -> Table:
    """Return the table with when and on what a chip's entries were measured."""
    changed = copy.deepcopy(table)
    changed[chip]["measured"] = label
    return changed


def _text(table: Table, part_text: Callable[[Mapping[str, Any]], str]) -> str:
    chips = [
        f'  "{chip}": {{\n    "measured": {json.dumps(part["measured"])},\n{part_text(part)}\n  }}'
        for chip, part in table.items()
    ]
    return "{\n" + ",\n".join(chips) + "\n}\n"


def _kinds_text(part: Mapping[str, Any]) -> str:
    kinds = [
        f'      "{kind}": [\n' + ",\n".join(_entry_text(entry) for entry in entries) + "\n      ]"
        for kind, entries in part["kinds"].items()
    ]
    return '    "kinds": {\n' + ",\n".join(kinds) + "\n    }"


def _entry_text(entry: Mapping[str, Any]) -> str:
    head = ", ".join(f'"{name}": {json.dumps(value)}' for name, value in entry.items() if name != "ladder")
    rungs = ",\n".join(f"          {json.dumps(rung)}" for rung in entry["ladder"])
    return f'        {{{head}, "ladder": [\n{rungs}\n        ]}}'


def _kernels_text(part: Mapping[str, Any]) -> str:
    kernels = []
    for kernel, tiles in part.items():
        if kernel != "measured":
            rows = ",\n".join(f'      "{key}": {json.dumps(tile)}' for key, tile in tiles.items())
            kernels.append(f'    "{kernel}": {{\n{rows}\n    }}')
    return ",\n".join(kernels)
