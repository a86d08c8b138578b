"""Tunes formats, shapes and kernels one after the other, and says what each gained.

Knows candidates, tables and what measures; files and devices are `__main__`'s.
"""

from collections.abc import Callable, Iterable

from bench.tune import tables
from bench.tune.candidates import RUNGS, attention_tiles, linear_families
from bench.tune.search import IsAllowed, Measure, climb, fastest
from bench.tune.tables import Table
from worker.kernels.linear_tuning import Tile as LinearTile
from worker.kernels.paged_attention_tuning import KERNELS, Kernel
from worker.kernels.paged_attention_tuning import Tile as AttentionTile

MeasureLinear = Callable[[str, tuple[int, int]], tuple["Measure[LinearTile]", "IsAllowed[LinearTile]"]]
"""Of a format and a shape, what measures its tiles and what allows them."""
MeasureAttention = Callable[
    [Kernel, str], tuple[Callable[[AttentionTile], float | None], "IsAllowed[AttentionTile]"]
]


def tune_linear(
    table: Table,
    chip: str,
    label: str,
    *,
    kinds: Iterable[str],
    shapes: Iterable[tuple[int, int]],
    measure: MeasureLinear,
    say: Callable[[str], None],
) -> Table:
    """Return the table with an entry for every format and shape, labelled as measured.

    Args:
        table: As it is committed.
        chip: Whose part is measured.
        label: When and on what.
        kinds: Formats.
        shapes: Rows and columns of W.
        measure: Gives what measures and allows the tiles of one of them.
        say: Takes a line for each.
    """
    shapes = list(shapes)
    for kind in kinds:
        for out_features, in_features in shapes:
            name = f"{kind} {out_features}x{in_features}"
            families = linear_families(chip, kind, in_features)
            tiles = climb(families, RUNGS, *measure(kind, (out_features, in_features)))
            if tiles is None:
                say(f"{name}: nothing can be launched on every rung; left as it is")
                continue
            say(f"{name}: block_k {tiles[0].block_k}, splits {tiles[0].splits}, {tiles}")
            shape = f"{out_features}x{in_features}"
            table = tables.with_linear(table, chip, kind, shape, RUNGS, tiles)
            table = tables.with_label(table, chip, label)
    return table


def tune_attention(
    table: Table,
    chip: str,
    label: str,
    *,
    keys: Iterable[str],
    measure: MeasureAttention,
    say: Callable[[str], None],
) -> Table:
    """Return the table with the fastest tile for every kernel and shape; arguments as in `tune_linear`."""
    keys = list(keys)
    for key in keys:
        for kernel in KERNELS:
            best = fastest(attention_tiles(chip, kernel), *measure(kernel, key))
            if best is None:
                say(f"{kernel} {key}: nothing can be launched; left as it is")
                continue
            say(f"{kernel} {key}: {best.cut}, {best.seconds * 1e6:.1f} us")
            table = tables.with_attention(table, chip, kernel, key, best.cut)
            table = tables.with_label(table, chip, f"{label}: {', '.join(keys)}")
    return table
