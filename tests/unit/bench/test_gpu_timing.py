"""How times are taken of a device, on a stand-in whose clock is the number of launches."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu import timing
from bench.gpu.timing import EventTimer


class Device:
    """Each launch takes as long as it says; only what runs on the device moves its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        self.host_s = 0.0
        self.launches: list[str] = []
        self.captured: list[tuple[str, float]] | None = None
        self.graphs: list[list[tuple[str, float]]] = []
        device = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.at = 0.0

            def record(self) -> None:
                self.at = device.now_ms

            def elapsed_time(self, other: "Event") -> float:
                return other.at - self.at

        class Graph:
            def replay(self) -> None:
                for name, took in device.graphs[-1]:
                    device.run(name, took)

        class Capture:
            def __init__(self, graph: Graph) -> None:
                pass

            def __enter__(self) -> None:
                device.captured = []

            def __exit__(self, *error: object) -> None:
                assert device.captured is not None
                device.graphs.append(device.captured)
                device.captured = None

        stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
        cuda = SimpleNamespace(
            Event=Event,
            CUDAGraph=Graph,
            graph=Capture,
            Stream=lambda: stream,
            stream=lambda one: nullcontext(),
            current_stream=lambda: stream,
            synchronize=lambda: None,
        )
        monkeypatch.setattr(timing, "torch", SimpleNamespace(cuda=cuda))
        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: self.host_s))

    def run(self, name: str, took_ms: float) -> None:
        """Launch something."""
        if self.captured is not None:
            self.captured.append((name, took_ms))
            return
        self.launches.append(name)
        self.now_ms += took_ms
        self.host_s += took_ms / 1e3 + 1e-4


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_copies_take_turns_within_a_graph_and_the_figure_is_one_calls(device: Device) -> None:
    calls = [lambda i=i: device.run(f"copy {i}", 0.5) for i in range(8)]
    assert EventTimer(repeats=5, target_s=0.02).kernels(calls) == pytest.approx(0.5e-3)
    [graph] = device.graphs
    names = [name for name, _ in graph]
    # As many rounds as the target takes, by what the host saw of one.
    assert len(names) == 8 * int(0.02 / (8 * (0.5e-3 + 1e-4)))
    assert all(names[i] != names[i - 1] for i in range(1, len(names)))
    assert names[:8] == [f"copy {i}" for i in range(8)]


def test_what_takes_long_is_captured_once_and_what_is_short_a_hundred_times(device: Device) -> None:
    for took, rounds in ((100.0, 1), (0.001, 100)):
        EventTimer(repeats=1).kernels([lambda took=took: device.run("work", took)])
        assert len(device.graphs[-1]) == rounds


def test_a_median_is_not_moved_by_one_slow_repeat(device: Device) -> None:
    # Three before the clock runs, then five that count.
    times = iter([9.0] * 3 + [1.0, 1.0, 50.0, 1.0, 1.0])
    assert EventTimer(repeats=5).step(lambda: device.run("step", next(times))) == pytest.approx(1e-3)


def test_what_is_compiled_while_warming_up_is_not_in_the_figure(device: Device) -> None:
    times: list[float] = [5000.0]

    def first_is_slow() -> Any:
        device.run("work", times.pop() if times else 2.0)

    assert EventTimer(repeats=3).kernels([first_is_slow]) == pytest.approx(2e-3)
