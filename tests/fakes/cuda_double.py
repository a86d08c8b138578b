"""torch, as far as `CudaStream` uses it, over a fake device: notes calls and checks them against torch's API.

Takes the place of `torch` in that module alone, so a name that is not here is an error. Arguments are bound
to the signatures of the installed torch, whose CPU builds have `torch.cuda` too; what a GPU would do with
them is the fake stream's to say. Not known: whether a driver behaves so.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fakes.fake_stream import FakeStream
from worker.executors import triton_cuda_stream
from worker.executors.triton_cuda_stream import CudaStream


def like(real: Callable[..., object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a stand-in be called only as torch's own function can be called."""
    signature = inspect.signature(real)

    def decorate(stand_in: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stand_in)
        def call(*args: Any, **kwargs: Any) -> Any:
            signature.bind(*args, **kwargs)
            return stand_in(*args, **kwargs)

        return call

    return decorate


class CudaDouble:
    """One device, and everything that was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: FakeStream) -> None:
        self.log: list[str] = []
        """Calls in order; those of torch's operations only where they copy from or to pinned memory."""
        self.device = device
        self.pinned: set[int] = set()
        """Addresses."""
        self._is_current = False
        """Whether the device is made the current one, which is another else."""
        double = self

        class Stream:
            @like(torch.cuda.Stream.__new__)
            def __new__(cls, device: object = None) -> Any:
                double.log.append("stream")
                return object.__new__(cls)

            @like(torch.cuda.Stream.synchronize)
            def synchronize(self) -> None:
                double.log.append("wait for stream")
                double.device.synchronize()

        class Event:
            @like(torch.cuda.Event.__new__)
            def __new__(cls) -> Any:
                double.log.append("event")
                return object.__new__(cls)

            def __init__(self) -> None:
                self.event = double.device.event()

            @like(torch.cuda.Event.record)
            def record(self, stream: object = None) -> None:
                assert isinstance(stream, Stream), "elsewhere it would be the current stream's"
                double.log.append("record")
                self.event.record()

            @like(torch.cuda.Event.synchronize)
            def synchronize(self) -> None:
                double.log.append("wait for event")
                self.event.synchronize()

        class CUDAGraph:
            launches: list[Callable[[], object]]

            @like(torch.cuda.CUDAGraph.__new__)
            def __new__(cls) -> Any:
                return object.__new__(cls)

            @like(torch.cuda.CUDAGraph.replay)
            def replay(self) -> None:
                assert double.device.is_launching, "it would be replayed on the default stream"
                double.log.append("replay")
                double.device.replay(self.launches)

        @like(torch.cuda.stream)
        def stream(stream: object) -> Any:
            assert isinstance(stream, Stream)
            return double._launching()

        @like(torch.cuda.graph)
        @contextmanager
        def graph(cuda_graph: CUDAGraph, *, stream: object) -> Iterator[None]:
            assert isinstance(stream, Stream)
            assert double._is_current, "torch waits for the current device before it captures"
            double.log.append("begin capture")
            with double.device.capturing() as launches:
                yield
            cuda_graph.launches = launches
            double.log.append("end capture")

        @like(torch.cuda.device)
        @contextmanager
        def device(of: object) -> Iterator[None]:
            assert of is double.device.device
            double._is_current = True
            yield
            double._is_current = False

        @like(torch.cuda.synchronize)
        def synchronize(device: object = None) -> None:
            assert device is not None, "elsewhere it would be the current device"
            double.log.append("wait for device")
            double.device.synchronize()

        cuda = SimpleNamespace(
            Stream=Stream,
            Event=Event,
            CUDAGraph=CUDAGraph,
            stream=stream,
            graph=graph,
            device=device,
            synchronize=synchronize,
        )
        self.module = SimpleNamespace(cuda=cuda, empty=self._empty, uint8=torch.uint8)
        monkeypatch.setattr(triton_cuda_stream, "torch", self.module)

    def make(self) -> CudaStream:
        """Return the real class, on this device."""
        return CudaStream(self.device.device)

    def _empty(self, num_bytes: int, *, dtype: torch.dtype, **where: Any) -> Tensor:
        assert dtype is torch.uint8
        if where.pop("pin_memory", False):
            assert not where
            self.log.append("pin")
            self.device.refuse_where_steady(f"pins {num_bytes} bytes")
            made = torch.full((num_bytes,), 255, dtype=dtype)
            self.pinned.add(made.data_ptr())
            return made
        assert where == {"device": self.device.device}
        self.log.append("allocate")
        return self.device.allocate(num_bytes)

    @contextmanager
    def _launching(self) -> Iterator[None]:
        with self.device.launching(), _Copies(self):
            yield


class _Copies(TorchDispatchMode):
    """Notes copies between pinned and other memory, which have to be such that the host goes on."""

    def __init__(self, double: CudaDouble) -> None:
        super().__init__()
        self._double = double

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.copy_.default:
            target, source = (each.data_ptr() in self._double.pinned for each in args[:2])
            if target != source:
                goes_on = (*args, kwargs.get("non_blocking"))[2]
                assert goes_on is True, "the host waits for this copy"
                self._double.log.append("download" if target else "upload")
        return func(*args, **kwargs)
