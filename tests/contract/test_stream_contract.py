"""What every `Stream` keeps. One suite over the real class, driven by a double of torch, and stand-ins."""

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.fakes.cuda_double import CudaDouble
from tests.fakes.doubling import Doubling
from tests.fakes.fake_stream import FakeBuffer, FakeEvent, FakeGraph, FakeStream
from worker.executors import triton_cuda_stream, triton_stream
from worker.executors.triton_cuda_stream import CudaStream
from worker.executors.triton_stream import InterpretedStream, Stream

DEVICES = ["fake", "cuda"]
"""What is queued there runs later."""


def make(name: str, monkeypatch: pytest.MonkeyPatch) -> Stream:
    if name == "cuda":
        return CudaDouble(monkeypatch, FakeStream()).make()
    return FakeStream() if name == "fake" else InterpretedStream()


@pytest.fixture(params=[*DEVICES, "interpreted"])
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stream:
    return make(request.param, monkeypatch)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stream:
    return make(request.param, monkeypatch)


def launched(doubling: Doubling) -> None:
    with doubling.stream.launching():
        doubling.launch()


def test_what_is_uploaded_launched_and_downloaded_is_there_when_the_event_has_passed(stream: Stream) -> None:
    doubling = Doubling(stream)
    for values in ([1, 2, 3, 4], [5, 6, 7, 8]):
        doubling.fill(*values)
        doubling.upload()
        launched(doubling)
        doubling.download()
        doubling.event.synchronize()
        assert doubling.result() == [2 * value for value in values]


def test_only_the_first_bytes_are_copied(stream: Stream) -> None:
    target, source = stream.allocate(8), stream.pinned(8)
    back = stream.pinned(8)
    for first, num_bytes in ((1, 8), (100, 3)):
        source.array[:] = np.arange(first, first + 8)
        stream.upload(source, target, num_bytes)
        stream.synchronize()
    back.array[:] = 9
    stream.download(target, back, 6)
    stream.synchronize()
    assert back.array.tolist() == [100, 101, 102, 4, 5, 6, 9, 9]


def test_memory_is_bytes_on_the_streams_device(stream: Stream) -> None:
    memory = stream.allocate(300)
    assert (memory.shape, memory.dtype, memory.device) == ((300,), torch.uint8, stream.device)
    assert stream.pinned(70).array.shape == (70,)
    assert stream.pinned(70).array.dtype == np.uint8


def test_an_event_may_be_recorded_again_and_stands_for_the_last_place(stream: Stream) -> None:
    doubling = Doubling(stream)
    doubling.event.record()
    doubling.event.synchronize()
    doubling.fill(1, 2, 3, 4)
    doubling.upload()
    launched(doubling)
    doubling.download()
    doubling.event.synchronize()
    assert doubling.result() == [2, 4, 6, 8]


def test_a_copy_for_taps_waits_and_is_nobodys_but_the_readers(stream: Stream) -> None:
    doubling = Doubling(stream)
    numbers = doubling.memory.tensor("y").view(torch.float32)
    with stream.launching():
        numbers.fill_(1.5)
    seen = stream.read(numbers)
    with stream.launching():
        numbers.fill_(2.5)
    assert seen.tolist() == [1.5] * 4
    assert stream.read(numbers).tolist() == [2.5] * 4


def test_a_replayed_graph_sees_what_was_copied_in(device: Stream) -> None:
    doubling = Doubling(device)
    graph = device.capture(doubling.launch)
    for values in ([1, 2, 3, 4], [5, 6, 7, 8]):
        doubling.fill(*values)
        doubling.upload()
        graph.replay()
        doubling.download()
        doubling.event.synchronize()
        assert doubling.result() == [2 * value for value in values]


def test_each_graph_keeps_its_own_launches_in_order(device: Stream) -> None:
    doubling = Doubling(device)
    x, y = doubling.memory.tensor("x"), doubling.memory.tensor("y")

    def adding() -> None:
        torch.add(x, 1, out=y)
        torch.mul(y, 10, out=y)

    add, double = device.capture(adding), device.capture(doubling.launch)
    doubling.fill(1, 2, 3, 4)
    doubling.upload()
    for graph, expected in ((add, [20, 30, 40, 50]), (double, [2, 4, 6, 8]), (add, [20, 30, 40, 50])):
        graph.replay()
        doubling.download()
        doubling.event.synchronize()
        assert doubling.result() == expected


def test_where_nothing_is_queued_nothing_is_captured() -> None:
    stream = InterpretedStream()
    assert not stream.can_capture
    with pytest.raises(AssertionError, match="not captured"):
        stream.capture(lambda: None)


@pytest.mark.parametrize(
    "implementation",
    [CudaStream, FakeStream, InterpretedStream],
)
def test_every_method_is_called_as_the_protocol_says(implementation: type) -> None:
    _assert_same_methods(Stream, implementation)


@pytest.mark.parametrize(
    ("protocol", "implementations"),
    [
        (triton_stream.Graph, (triton_cuda_stream._CudaGraph, FakeGraph)),
        (triton_stream.Event, (triton_cuda_stream._CudaEvent, FakeEvent, triton_stream._PassedEvent)),
        (triton_stream.HostBuffer, (triton_cuda_stream._PinnedBuffer, FakeBuffer)),
    ],
)
def test_what_streams_make_is_used_as_the_protocols_say(protocol: type, implementations: tuple[type]) -> None:
    for implementation in implementations:
        _assert_same_methods(protocol, implementation)


def _assert_same_methods(protocol: type, implementation: type) -> None:
    methods: dict[str, Callable[..., object]] = {
        name: method
        for name, method in vars(protocol).items()
        if not name.startswith("_") and inspect.isfunction(method)
    }
    for name, method in methods.items():
        ours = inspect.signature(getattr(implementation, name)).parameters
        assert list(ours) == list(inspect.signature(method).parameters), name
