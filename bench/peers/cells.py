"""The loads that servers are compared on, and what ours must reach beside the best peer.

Data; knows nothing of how a load is sent.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.peers.load import Cell, Figures

_MIXED, _MEAN = (32, 1500), (766, 766)

CELLS = {
    cell.name: cell
    for cell in (
        Cell(name="ss16", prompt_tokens=(128, 128), output_tokens=64, concurrency=16, requests=320),
        Cell(name="ss1", prompt_tokens=(128, 128), output_tokens=64, concurrency=1, requests=320),
        Cell(name="ls16", prompt_tokens=(1024, 1024), output_tokens=32, concurrency=16, requests=64),
        Cell(name="ll16", prompt_tokens=(1024, 1024), output_tokens=128, concurrency=16, requests=64),
        Cell(
            name="sp16",
            prompt_tokens=(1088, 1088),
            output_tokens=32,
            concurrency=16,
            requests=64,
            shared_tokens=1024,
        ),
        Cell(name="mixed16", prompt_tokens=_MIXED, output_tokens=64, concurrency=16, requests=320),
        Cell(name="equal16", prompt_tokens=_MEAN, output_tokens=64, concurrency=16, requests=320),
    )
}
"""mixed16 and equal16 carry the same tokens on average, and are held against each other."""

OURS_ALONE = frozenset({"mixed16", "equal16"})


@dataclass(frozen=True, slots=True)
class Target:
    """One row of what is asked: a ratio of ours to the best peer's figure, or to our own other cell's."""

    what: str
    cell: str
    figure: Callable[[Figures], float]
    at_least: float
    aim: float
    other_cell: str | None = None
    """Ours there, instead of a peer's."""
    is_time: bool = False
    """A time: the least is best, and the bounds are upper ones."""

    def best(self, found: list[float]) -> float:
        return min(found) if self.is_time else max(found)

    def verdict(self, ratio: float) -> str:
        sign = -1 if self.is_time else 1
        if sign * ratio >= sign * self.aim:
            return "aim"
        return "holds" if sign * ratio >= sign * self.at_least else "SHORT"


def _output(figures: Figures) -> float:
    return figures.output_tokens_per_s


def _total(figures: Figures) -> float:
    return figures.total_tokens_per_s


TARGETS = (
    Target("output tok/s", "ss16", _output, 2.6, 3.6),
    Target("output tok/s", "ss1", _output, 2.5, 3.3),
    Target("total tok/s", "ls16", _total, 2.4, 3.3),
    Target("output tok/s", "ll16", _output, 2.4, 3.3),
    Target("total tok/s", "sp16", _total, 2.3, 3.2),
    Target("TTFT p50", "ss16", lambda one: one.ttft_p50_ms, 1 / 3, 0.25, is_time=True),
    Target("TTFT p99", "ss16", lambda one: one.ttft_p99_ms, 0.6, 0.4, is_time=True),
    Target("total tok/s", "mixed16", _total, 0.95, 0.99, other_cell="equal16"),
)
