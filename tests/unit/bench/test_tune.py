"""The tuner by a timer that lies in the test: what it chooses, what it writes, and what it leaves alone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.tune import tables
from bench.tune.candidates import RUNGS, attention_tiles, linear_families
from bench.tune.search import Rung, climb, fastest
from bench.tune.tuner import tune_attention, tune_linear
from worker.kernels import linear_tuning, paged_attention_tuning
from worker.kernels.aot import CHIPS
from worker.kernels.linear_tuning import Tile as LinearTile
from worker.kernels.paged_attention_tuning import Tile as AttentionTile

LABEL = "NVIDIA H200, triton 3.6.0, 2026-12-01"


def linear_table() -> dict[str, object]:
    table: dict[str, object] = json.loads(linear_tuning.TABLE.read_text())
    return table


def attention_table() -> dict[str, object]:
    table: dict[str, object] = json.loads(paged_attention_tuning.TABLE.read_text())
    return table


def allowed(cut: object) -> bool:
    """Allow everything."""
    return True


def no_line(line: str) -> None:
    """Take a line and leave it."""


@pytest.fixture
def read_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return what makes a module read another table until the test ends."""

    def use(module: object, text: str) -> None:
        path = tmp_path / "table.json"
        path.write_text(text)
        monkeypatch.setattr(module, "TABLE", path)
        monkeypatch.setattr(module, "_table", lambda: json.loads(path.read_text()))

    return use


def test_the_fastest_is_taken_and_what_cannot_run_is_not() -> None:
    seconds = {"a": 3.0, "b": None, "c": 1.0, "d": 1.0}
    best = fastest(seconds, seconds.__getitem__, allowed)
    assert best is not None
    assert (best.cut, best.seconds) == ("c", 1.0)
    assert fastest(["b"], seconds.__getitem__, allowed) is None


def test_what_is_not_allowed_is_passed_over_and_slower_ones_are_not_asked_about() -> None:
    seconds = {"a": 3.0, "b": 2.0, "c": 1.0}
    asked: list[str] = []

    def spills(cut: str) -> bool:
        asked.append(cut)
        return cut != "c"

    best = fastest(seconds, seconds.__getitem__, spills)
    assert best is not None
    assert best.cut == "b"
    assert asked == ["c", "b"]
    assert fastest(seconds, seconds.__getitem__, lambda cut: False) is None


def test_a_family_is_chosen_for_all_rungs_together() -> None:
    """The worked number of `climb`."""
    seconds = {"a1": 1.0, "a2": 4.0, "b1": 1.5, "b2": 2.0}
    rungs = (Rung(16, (1,)), Rung(64, (64,)))
    families = [[["a1"], ["a2"]], [["b1"], ["b2"]]]
    assert climb(families, rungs, lambda cut, rows: seconds[cut], allowed) == ["b1", "b2"]


def test_a_family_without_a_cut_for_every_rung_is_none() -> None:
    rungs = (Rung(16, (1, 16)), Rung(64, (64,)))
    families = [[["a1"], ["a2"]], [["b1"], ["b2"]]]
    # a1 cannot take 16 rows, only 1.
    seconds = {("a1", 16): None}
    assert climb(families, rungs, lambda cut, rows: seconds.get((cut, rows), 9.0), allowed) == ["b1", "b2"]
    assert climb(families, rungs, lambda cut, rows: None, allowed) is None
    assert climb(families, rungs, lambda cut, rows: 1.0, lambda cut: cut[0] == "b") == ["b1", "b2"]
    assert climb(families, rungs, lambda cut, rows: 1.0, lambda cut: cut != "b1" and cut != "a2") is None


def test_the_tables_are_written_line_for_line_as_they_are_committed() -> None:
    assert tables.linear_text(linear_table()) == linear_tuning.TABLE.read_text()
    assert tables.attention_text(attention_table()) == paged_attention_tuning.TABLE.read_text()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", linear_tuning.kinds("sm_90"))
def test_candidates_of_an_entry_differ_in_nothing_that_decides_bits(chip: str, kind: str) -> None:
    families = linear_families(chip, kind, 4096)
    assert len(families) > 1
    group = int(kind.partition("-g")[2] or 0)
    for family in families:
        assert len({(tile.block_k, tile.splits) for rung in family for tile in rung}) == 1
        for rung, tiles in zip(RUNGS, family, strict=True):
            assert tiles
            for tile in tiles:
                assert kind.startswith("w8a8") or tile.block_k % max(group, 1) == 0
                assert tile.is_parallel == (tile.splits > 1 and rung.rows <= 64)
    if chip == "sm_100":
        assert {tile.block_n for family in families for rung in family for tile in rung} == {128}


def test_a_short_k_is_not_cut_into_pieces_that_cost_more_than_they_gain() -> None:
    splits = {family[0][0].splits for family in linear_families("sm_90", "bf16", 1024)}
    assert splits == {1, 2}


def wanted(tile: LinearTile, rows: int) -> float:
    """Seconds of a chip that likes two splits, few stages, and small tiles of x for few rows."""
    return (
        (10.0 if tile.splits != 2 or tile.block_k != 128 else 1.0)
        + tile.num_stages
        + (tile.block_m if rows <= 64 else 256 - tile.block_m)
    )


def test_a_measured_shape_has_an_entry_of_its_own_and_the_chip_a_label(
    read_anew: Callable[..., None],
) -> None:
    before = linear_table()
    tuned = tune_linear(
        before,
        "sm_90",
        LABEL,
        kinds=["w4a16-g128"],
        shapes=[(4096, 4096)],
        measure=lambda kind, shape: (wanted, allowed),
        say=no_line,
    )
    assert before == linear_table(), "the table that was read stays as it is"
    read_anew(linear_tuning, tables.linear_text(tuned))
    assert linear_tuning.label("sm_90") == LABEL
    assert linear_tuning.label("gfx942") == "untuned"
    assert linear_tuning.shapes("sm_90", "w4a16-g128") == ["4096x4096", "*"]

    def tile(rows: int, out_features: int = 4096) -> LinearTile:
        return linear_tuning.tile(
            "sm_90", "w4a16-g128", out_features=out_features, in_features=4096, num_rows=rows
        )

    few, some, many = tile(1), tile(64), tile(5000)
    assert (few.block_m, some.block_m, many.block_m) == (16, 32, 128)
    assert {(one.block_k, one.splits, one.num_stages) for one in (few, some, many)} == {(128, 2, 3)}
    assert (few.is_parallel, some.is_parallel, many.is_parallel) == (True, True, False)
    read_anew(linear_tuning, tables.linear_text(before))
    of_all = tile(1, out_features=5120)
    read_anew(linear_tuning, tables.linear_text(tuned))
    assert tile(1, out_features=5120) == of_all, "other shapes are cut as before"


def test_a_shape_that_is_measured_again_replaces_its_entry() -> None:
    table = linear_table()
    for _ in range(2):
        table = tune_linear(
            table,
            "sm_80",
            LABEL,
            kinds=["bf16"],
            shapes=[(4096, 4096), (6144, 4096)],
            measure=lambda kind, shape: (lambda tile, rows: float(tile.num_stages), allowed),
            say=no_line,
        )
    entries = table["sm_80"]["kinds"]["bf16"]  # type: ignore[index]
    assert [entry["shape"] for entry in entries] == ["4096x4096", "6144x4096", "*"]


def test_a_shape_that_nothing_can_be_launched_for_is_left_and_named() -> None:
    lines: list[str] = []
    tuned = tune_linear(
        linear_table(),
        "sm_90",
        LABEL,
        kinds=["bf16"],
        shapes=[(8, 8)],
        measure=lambda kind, shape: (lambda tile, rows: None, allowed),
        say=lines.append,
    )
    assert tuned == linear_table(), "no label either"
    assert lines == ["bf16 8x8: nothing can be launched on every rung; left as it is"]


def test_attention_gets_the_fastest_tile_of_each_kernel_and_shape(read_anew: Callable[..., None]) -> None:
    def seconds(tile: AttentionTile) -> float | None:
        """More than 64 rows do not fit; among the rest many rows, few warps and three stages are fastest."""
        if tile.m > 64:
            return None
        return abs(tile.num_stages - 3) + 1 / tile.m + tile.num_warps / 100

    tuned = tune_attention(
        attention_table(),
        "sm_90",
        LABEL,
        keys=["d128-int8"],
        measure=lambda kernel, key: (seconds, allowed),
        say=no_line,
    )
    numerics = paged_attention_tuning.numerics("sm_90")
    read_anew(paged_attention_tuning, tables.attention_text(tuned))
    paged_attention_tuning.tile.cache_clear()
    try:
        ragged = paged_attention_tuning.tile("sm_90", "ragged", 96, is_int8=True)
        decode = paged_attention_tuning.tile("sm_90", "decode", 128, is_int8=True)
        assert ragged == AttentionTile(m=64, num_warps=4, num_stages=3)
        assert decode == AttentionTile(m=16, num_warps=4, num_stages=3)
        assert paged_attention_tuning.label("sm_90") == f"{LABEL}: d128-int8"
        assert paged_attention_tuning.label("sm_80") == "untuned"
        assert paged_attention_tuning.numerics("sm_90") != numerics
    finally:
        paged_attention_tuning.tile.cache_clear()


@pytest.mark.parametrize("chip", CHIPS)
def test_tiles_of_attention_are_few_and_all_different(chip: str) -> None:
    for kernel in paged_attention_tuning.KERNELS:
        tiles = attention_tiles(chip, kernel)
        assert len(set(tiles)) == len(tiles) <= 30


MEASURE = """
import torch
from bench.gpu.context import BenchContext
from bench.gpu.sizes import TINY
from bench.gpu.timing import OnceTimer
from bench.tune import measuring
from bench.tune.candidates import attention_tiles, linear_families

context = BenchContext(
    device=torch.device("cpu"), timer=OnceTimer(), sizes=TINY, generator=torch.Generator().manual_seed(0)
)
for kind in ("bf16", "w4a16-g128", "w8a8-g32"):
    measure = measuring.LinearMeasure(context, "sm_90", kind, (128, 256))
    print(measure.seconds(linear_families("sm_90", kind, 1024)[-1][0][0], 3))
for kernel in ("ragged", "decode"):
    measure = measuring.AttentionMeasure(context, "sm_90", kernel, "d128-int8")
    print(measure.seconds(attention_tiles("sm_90", kernel)[0]))
"""
FILTER = """
from dataclasses import replace
from bench.tune import measuring
from worker.kernels import linear_tuning
from worker.kernels.linear_triton import aot_kernel

(tile, *_) = linear_tuning.ladder("sm_90", "bf16")
for stages in (tile.num_stages, 40):
    kernel = aot_kernel("sm_90", "bf16", replace(tile, num_stages=stages))
    print(measuring._spills_nothing("sm_90", [kernel]))
"""


def lines_of(script: str, *, interpret: bool) -> list[str]:
    child = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRITON_INTERPRET": str(int(interpret))},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return child.stdout.splitlines()


@pytest.mark.slow
def test_every_line_that_measures_runs_interpreted() -> None:
    seconds = [float(line) for line in lines_of(MEASURE, interpret=True)]
    assert len(seconds) == 5
    assert all(one > 0 for one in seconds)


@pytest.mark.slow
def test_what_a_chip_has_no_room_for_is_not_measured() -> None:
    assert lines_of(FILTER, interpret=False) == ["True", "False"]
