"""Seconds of device work: medians by events, around graphs of launches so that the host is not measured.

Knows torch; knows nothing of what is launched.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

Call = Callable[[], object]


class Timer(Protocol):
    """How long calls take."""

    def kernels(self, calls: Sequence[Call]) -> float:
        """Return the median seconds of one call, all of them launched one after the other, again and again.

        Args:
            calls: The same work, each over other copies of what it reads. They keep no memory.
        """

    def step(self, call: Call) -> float:
        """Return the median seconds of a call whose work on the host counts too."""


class EventTimer:
    """A device's own clock."""

    def __init__(self, *, repeats: int = 20, target_s: float = 0.02) -> None:
        self._repeats = repeats
        self._target_s = target_s
        """How long one graph runs at least: events tick every half microsecond."""

    def kernels(self, calls: Sequence[Call]) -> float:
        """See `Timer`. Calls are captured in a graph, which costs no launch by the host."""
        once_s = self._eager(calls)
        rounds = max(1, min(100, int(self._target_s / max(once_s, 1e-6))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(rounds):
                for call in calls:
                    call()
        graph.replay()
        return self._median(graph.replay) / (rounds * len(calls))

    def step(self, call: Call) -> float:
        """See `Timer`."""
        for _ in range(3):
            call()
        return self._median(call)

    def _eager(self, calls: Sequence[Call]) -> float:
        """Compile and warm up, off the default stream as capture wants it; return seconds of one round."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in calls:
                call()
            side.synchronize()
            began = time.perf_counter()
            for call in calls:
                call()
            side.synchronize()
        torch.cuda.current_stream().wait_stream(side)
        return time.perf_counter() - began

    def _median(self, call: Call) -> float:
        pairs = []
        for _ in range(self._repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        return statistics.median(float(start.elapsed_time(end)) for start, end in pairs) / 1000


class OnceTimer:
    """Runs every call once, where kernels are interpreted; its seconds mean nothing."""

    def kernels(self, calls: Sequence[Call]) -> float:
        """See `Timer`."""
        began = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - began) / len(calls)

    def step(self, call: Call) -> float:
        """See `Timer`."""
        return self.kernels([call])
