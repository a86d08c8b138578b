"""A `Stream` on the CPU that behaves like a device's: nothing runs before somebody waits for it.

Launches of interpreted kernels and torch's operations are kept as they were made, with the buffers, sizes and
numbers of that moment, and run when the host synchronises. So whatever reads a result too early, writes over
an input too early, waits or allocates where it must not, or expects a captured graph to see anything but what
lies in its buffers, gets an error or other tokens.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from worker.executors.triton_stream import Event, Graph, HostBuffer

_launch_now = GridExecutor.__call__


class FakeStream:
    """One fake device with one stream."""

    device = torch.device("cpu")
    can_capture = True

    def __init__(self, *, computes: bool = True, memory_bytes: int = 1 << 40) -> None:
        """Args:
        computes: Otherwise copies are made and launches are only counted: every result is 0.
        memory_bytes: More cannot be allocated.
        """
        self.calls: Counter[str] = Counter()
        """How often: `upload`, `download`, `capture`, `replay`, `synchronize`, and each kernel by name."""
        self.order: deque[str] = deque(maxlen=200)
        """The last calls, in order."""
        self.reserved_bytes = 0
        self.error: Exception | None = None
        """Set by a test: the device fails with it from the next time that it runs, and for ever."""
        self._computes, self._memory_bytes = computes, memory_bytes
        self._queue: deque[Callable[[], object]] = deque()
        self._num_queued = 0
        self._captured: list[Callable[[], object]] | None = None
        self.is_launching = self._is_steady = self._is_running = False
        self._mode = _Operations(self)

    # Memory.

    def allocate(self, num_bytes: int) -> Tensor:
        self.refuse_where_steady(f"allocates {num_bytes} bytes")
        if self.reserved_bytes + num_bytes > self._memory_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes.\nMore.")
        self.reserved_bytes += num_bytes
        # What nobody wrote is NaN, or -1.
        return torch.full((num_bytes,), 255 if self._computes else 0, dtype=torch.uint8)

    def pinned(self, num_bytes: int) -> HostBuffer:
        self.refuse_where_steady(f"pins {num_bytes} bytes")
        return FakeBuffer(num_bytes)

    # The queue.

    @contextmanager
    def launching(self) -> Iterator[None]:
        assert not self.is_launching, "one launches at a time"
        self.is_launching = True
        stream = self

        def queue_kernel(kernel: GridExecutor, *args: Any, **kwargs: Any) -> None:
            stream.queue(kernel.fn.__name__, lambda: _launch_now(kernel, *args, **kwargs))

        GridExecutor.__call__ = queue_kernel
        try:
            with self._mode:
                yield
        finally:
            GridExecutor.__call__ = _launch_now
            self.is_launching = False

    def queue(self, name: str, launch: Callable[[], object]) -> None:
        """Keep a launch for later, in the graph that is being captured if there is one."""
        if self._captured is not None:
            self._captured.append(launch)
            return
        self._note(name)
        self._push(launch if self._computes else lambda: None)

    def upload(self, source: HostBuffer, target: Tensor, num_bytes: int) -> None:
        self._copy(
            "upload", source, lambda host: target[:num_bytes].copy_(torch.from_numpy(host[:num_bytes]))
        )

    def download(self, source: Tensor, target: HostBuffer, num_bytes: int) -> None:
        def copy(host: NDArray[np.uint8]) -> None:
            host[:num_bytes] = source[:num_bytes].numpy()

        self._copy("download", target, copy)

    def _copy(self, name: str, buffer: HostBuffer, copy: Callable[[NDArray[np.uint8]], object]) -> None:
        assert isinstance(buffer, FakeBuffer), "only pinned memory can be copied while the host goes on"
        self._refuse_where_capturing(name)
        self._note(name)
        buffer.num_copies += 1

        def run() -> None:
            buffer.num_copies -= 1
            copy(buffer.array_of_device)

        self._push(run)

    def _push(self, run: Callable[[], object]) -> None:
        self._queue.append(run)
        self._num_queued += 1

    # Graphs and events.

    def capture(self, launch: Callable[[], None]) -> Graph:
        with self.capturing() as launches:
            launch()
        return FakeGraph(self, launches)

    @contextmanager
    def capturing(self) -> Iterator[list[Callable[[], object]]]:
        """Keep what is launched in the list that this gives, once all that was queued has run."""
        self._run_until(self._num_queued)
        self._note("capture")
        launches: list[Callable[[], object]] = []
        self._captured = launches
        try:
            with self.launching():
                yield launches
        finally:
            self._captured = None

    def replay(self, launches: list[Callable[[], object]]) -> None:
        self._refuse_where_capturing("replay")
        self._note("replay")
        for launch in launches if self._computes else ():
            self._push(launch)

    def event(self) -> Event:
        self.refuse_where_steady("makes an event")
        return FakeEvent(self)

    def place(self) -> int:
        self._refuse_where_capturing("record")
        return self._num_queued

    def wait(self, place: int) -> None:
        self._refuse_where_capturing("synchronize")
        self._note("synchronize")
        self._run_until(place)

    def synchronize(self) -> None:
        self.wait(self._num_queued)

    def read(self, tensor: Tensor) -> NDArray[np.float32]:
        self.synchronize()
        return np.array(tensor.numpy())

    def _run_until(self, place: int) -> None:
        self._is_running = True
        try:
            with torch.inference_mode():
                while self._num_queued - len(self._queue) < place:
                    if self.error is not None:
                        raise self.error
                    self._queue.popleft()()
        finally:
            self._is_running = False

    # What a step may not do.

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Refuse every allocation from here on: what serves has been made before."""
        self._is_steady = True
        try:
            with _Operations(self):
                yield
        finally:
            self._is_steady = False

    def check_operation(self, name: str) -> None:
        """Refuse an operation of torch's that makes a tensor or reads one on the host."""
        if not self._is_running and (self.is_launching or self._is_steady):
            raise AssertionError(f"{name} allocates or waits within a step")

    @property
    def takes_operations(self) -> bool:
        return self.is_launching and not self._is_running

    def _note(self, name: str) -> None:
        if self.error is not None and name != "synchronize":
            raise self.error
        self.calls[name] += 1
        self.order.append(name)

    def refuse_where_steady(self, what: str) -> None:
        """Refuse what may be made at the start and not within a step."""
        self._refuse_where_capturing(what)
        assert not self._is_steady, f"a step {what}"

    def _refuse_where_capturing(self, what: str) -> None:
        if self._captured is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")


class _Operations(TorchDispatchMode):
    """Takes torch's operations: those that write go to the stream, views are made, all else is refused."""

    def __init__(self, stream: FakeStream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        written = [
            i for i, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write
        ]
        if written and self._stream.takes_operations:
            self._stream.queue(str(func), lambda: func(*args, **kwargs))
            name = schema.arguments[written[0]].name
            return kwargs[name] if name in kwargs else args[written[0]]
        if not written and not any(each.alias_info for each in schema.returns):
            self._stream.check_operation(str(func))
        return func(*args, **kwargs)


class FakeBuffer:
    """Pinned memory that refuses to be touched while a copy is under way."""

    def __init__(self, num_bytes: int) -> None:
        self.array_of_device: NDArray[np.uint8] = np.full(num_bytes, 255, np.uint8)
        self.num_copies = 0

    @property
    def array(self) -> NDArray[np.uint8]:
        assert not self.num_copies, "host memory is touched while a copy from or to it is under way"
        return self.array_of_device


class FakeGraph:
    """Launches, each with its buffers and numbers."""

    def __init__(self, stream: FakeStream, launches: list[Callable[[], object]]) -> None:
        self._stream, self._launches = stream, launches

    def replay(self) -> None:
        self._stream.replay(self._launches)


class FakeEvent:
    """A place in the queue."""

    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream
        self._place: int | None = None

    def record(self) -> None:
        self._place = self._stream.place()

    def synchronize(self) -> None:
        assert self._place is not None, "an event that was not recorded has passed at once"
        self._stream.wait(self._place)
