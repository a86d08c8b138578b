"""What the Triton executor asks of a device's host side: one stream, its memory, copies, graphs and events.

Knows torch's tensors and errors; knows nothing of plans or kernels. `triton_cuda_stream` is the real
one. Here is also the one for interpreted kernels, which does everything at once and captures nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.executors.base import ExecutorFault


class HostBuffer(Protocol):
    """Page-locked memory of the host."""

    @property
    def array(self) -> NDArray[np.uint8]:
        """[num_bytes]. While a copy from or to it is under way, nobody touches it."""


class Graph(Protocol):
    """Launches captured once, with the addresses and sizes that they had then."""

    def replay(self) -> None:
        """Queue all of them."""


class Event(Protocol):
    """A place in the stream."""

    def record(self) -> None:
        """Be the place after everything queued so far."""

    def synchronize(self) -> None:
        """Wait until the stream has passed the place; errors of what came before are raised here."""


class Stream(Protocol):
    """One queue of work on one device. Whatever is launched runs later, in order."""

    @property
    def device(self) -> torch.device: ...

    @property
    def can_capture(self) -> bool: ...

    def allocate(self, num_bytes: int) -> Tensor:
        """Return device memory [num_bytes] uint8, aligned to 256 bytes; it may hold anything.

        Raises:
            torch.OutOfMemoryError: There is not so much.
        """

    def pinned(self, num_bytes: int) -> HostBuffer:
        """Return memory of the host that copies can run from and to by themselves."""

    def launching(self) -> AbstractContextManager[object]:
        """Return a context in which kernels and torch's operations go to this stream."""

    def upload(self, source: HostBuffer, target: Tensor, num_bytes: int) -> None:
        """Queue a copy of the first `num_bytes` to the device."""

    def download(self, source: Tensor, target: HostBuffer, num_bytes: int) -> None:
        """Queue a copy of the first `num_bytes` to the host."""

    def capture(self, launch: Callable[[], None]) -> Graph:
        """Return what `launch` launches as a graph. It may run once before, to be compiled and loaded."""

    def event(self) -> Event: ...

    def read(self, tensor: Tensor) -> NDArray[np.float32]:
        """Wait for everything queued and return a copy of a float32 tensor; for taps, not for steps."""

    def synchronize(self) -> None:
        """Wait for everything, whatever stream it is on."""


class InterpretedStream:
    """A `Stream` of interpreted kernels: what is queued has run when the call returns."""

    device = torch.device("cpu")
    can_capture = False

    def allocate(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def pinned(self, num_bytes: int) -> HostBuffer:
        return _PlainBuffer(num_bytes)

    def launching(self) -> AbstractContextManager[object]:
        return nullcontext()

    def upload(self, source: HostBuffer, target: Tensor, num_bytes: int) -> None:
        target[:num_bytes].copy_(torch.from_numpy(source.array[:num_bytes]))

    def download(self, source: Tensor, target: HostBuffer, num_bytes: int) -> None:
        target.array[:num_bytes] = source[:num_bytes].numpy()

    def capture(self, launch: Callable[[], None]) -> Graph:
        raise AssertionError("interpreted kernels are not captured")

    def event(self) -> Event:
        return _PassedEvent()

    def read(self, tensor: Tensor) -> NDArray[np.float32]:
        return np.array(tensor.numpy())

    def synchronize(self) -> None:
        """Nothing is under way."""


class _PlainBuffer:
    def __init__(self, num_bytes: int) -> None:
        self.array: NDArray[np.uint8] = np.zeros(num_bytes, np.uint8)


class _PassedEvent:
    def record(self) -> None:
        """Everything before has run."""

    def synchronize(self) -> None:
        """As above."""


@contextmanager
def device_faults(doing: str) -> Iterator[None]:
    """Turn every error of a device into the one that ends the worker.

    After an illegal address or a failed launch the driver answers every later call with the same error, and
    what an allocation that failed half-way has left behind is not known: neither is repaired in this process.

    Args:
        doing: What failed, for people: `a step`.

    Raises:
        ExecutorFault: Says what was being done, and whether memory ran out or the device failed.
    """
    try:
        yield
    except torch.OutOfMemoryError as exc:
        raise ExecutorFault(f"{doing} ran out of device memory: {_first_line(exc)}") from exc
    except RuntimeError as exc:
        raise ExecutorFault(f"{doing} failed on the device: {_first_line(exc)}") from exc


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
