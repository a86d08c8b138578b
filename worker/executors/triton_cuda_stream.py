"""`Stream` on a GPU, by torch's CUDA interface (ROCm's build of torch has the same one).

Knows torch alone; what is launched is the executor's to say.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.executors.triton_stream import Event, Graph, HostBuffer


class CudaStream:
    """A stream of its own on one GPU."""

    can_capture = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def allocate(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def pinned(self, num_bytes: int) -> HostBuffer:
        return _PinnedBuffer(num_bytes)

    def launching(self) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return context

    def upload(self, source: HostBuffer, target: Tensor, num_bytes: int) -> None:
        assert isinstance(source, _PinnedBuffer), "other memory would be copied while everybody waits"
        with self.launching():
            target[:num_bytes].copy_(source.tensor[:num_bytes], non_blocking=True)

    def download(self, source: Tensor, target: HostBuffer, num_bytes: int) -> None:
        assert isinstance(target, _PinnedBuffer), "other memory would be copied while everybody waits"
        with self.launching():
            target.tensor[:num_bytes].copy_(source[:num_bytes], non_blocking=True)

    def capture(self, launch: Callable[[], None]) -> Graph:
        with self.launching():
            # Compiling and loading a module are not launches: they may not happen while capturing.
            launch()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        # It first waits for the current device, and a rank's is not its own: a wait makes a context there.
        with torch.cuda.device(self.device), torch.cuda.graph(graph, stream=self._stream):
            launch()
        return _CudaGraph(graph, self)

    def event(self) -> Event:
        return _CudaEvent(self._stream)

    def read(self, tensor: Tensor) -> NDArray[np.float32]:
        self._stream.synchronize()
        return np.array(tensor.cpu().numpy())

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


class _PinnedBuffer:
    def __init__(self, num_bytes: int) -> None:
        self.tensor = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        self.array: NDArray[np.uint8] = self.tensor.numpy()


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, stream: CudaStream) -> None:
        self._graph, self._stream = graph, stream

    def replay(self) -> None:
        with self._stream.launching():
            self._graph.replay()


class _CudaEvent:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._event = torch.cuda.Event()

    def record(self) -> None:
        self._event.record(self._stream)

    def synchronize(self) -> None:
        self._event.synchronize()
