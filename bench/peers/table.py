"""Turns runs into the table that `bench.peers` prints. Knows runs and targets; starts and sends nothing."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from bench.peers.cells import TARGETS, Target
from bench.peers.load import Figures

NOISE_LIMIT = 0.10
"""Share of all cores that others took, above which a run is left out where a quieter one exists."""


@dataclass(frozen=True, slots=True)
class Run:
    """One cell on one server, once."""

    figures: Figures
    foreign_share: float
    """Of all cores, that others took meanwhile, 0..1."""
    seconds: float


@dataclass(slots=True)
class Results:
    """All that was found. Servers are named; the first of `servers` is ours."""

    servers: Sequence[str]
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    """By (server, cell)."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Server, or `server, cell`: why there is no figure."""

    def median(self, server: str, cell: str) -> Figures | None:
        """Return the medians of the quiet runs, or of all when none was quiet; None without a run."""
        runs = self.runs.get((server, cell), [])
        runs = [run for run in runs if run.foreign_share <= NOISE_LIMIT] or runs
        if not runs:
            return None
        rows = [asdict(run.figures) for run in runs]
        return Figures(**{name: statistics.median(row[name] for row in rows) for name in rows[0]})


def text_of(figures: Figures) -> str:
    """Return one run's figures in one line."""
    return (
        f"out {figures.output_tokens_per_s:7.1f} tok/s  total {figures.total_tokens_per_s:8.1f} tok/s"
        f"  TTFT p50 {figures.ttft_p50_ms:7.0f} p99 {figures.ttft_p99_ms:7.0f} ms"
        f"  first burst {figures.burst_ttft_p50_ms:7.0f} ms  n={figures.requests}"
    )


def lines(results: Results, cells: Sequence[str]) -> Iterator[str]:
    """Yield the medians of every cell and server, the peers that are not there, and the targets."""
    yield f"medians of runs with at most {NOISE_LIMIT:.0%} foreign CPU (* none was that quiet)"
    for cell in cells:
        for server in results.servers:
            runs = results.runs.get((server, cell), [])
            figures = results.median(server, cell)
            if figures is not None:
                is_noisy = all(run.foreign_share > NOISE_LIMIT for run in runs)
                yield f"{cell:8} {server:16} {text_of(figures)}  runs={len(runs)}{' *' if is_noisy else ''}"
    for name, why in results.unavailable.items():
        what = "unavailable" if name.startswith(results.servers[0]) else "peer unavailable"
        yield f"{name}: {what}: {why}"
    yield "ours against the best peer"
    for target in TARGETS:
        if target.cell in cells:
            yield f"{target.cell:8} {target.what:13} {_ratio(target, results)}"


def _ratio(target: Target, results: Results) -> str:
    ours = _figures(target, results, results.servers[:1], target.cell)
    if target.other_cell is not None:
        theirs = _figures(target, results, results.servers[:1], target.other_cell)
    else:
        theirs = _figures(target, results, results.servers[1:], target.cell)
    if not ours or not theirs:
        return "no figure: " + ("ours did not run" if not ours else "nothing to hold it against ran")
    best = target.best(list(theirs.values()))
    ratio = next(iter(ours.values())) / best
    name = next(server for server, value in theirs.items() if value == best)
    against = f"{name}{' ' + target.other_cell if target.other_cell else ''}"
    word = "at most" if target.is_time else "at least"
    return (
        f"x{ratio:.2f} of {against} ({word} {target.at_least:.2f}, aim {target.aim:.2f}):"
        f" {target.verdict(ratio)}"
    )


def _figures(target: Target, results: Results, servers: Sequence[str], cell: str) -> Mapping[str, float]:
    found = ((server, results.median(server, cell)) for server in servers)
    return {server: target.figure(figures) for server, figures in found if figures is not None}
