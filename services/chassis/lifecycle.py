"""One process from boot to exit: signals, drain limit, supervised tasks, lifeline, waking up.

Knows when to stop; does not know what a service does while it stops.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from services.chassis.fatal import FatalError
from services.chassis.stream import DEAD_AFTER_S
from services.chassis.ticks import next_tick
from services.domain.ids import Epoch

DRAIN_LIMIT_S = 30.0
"""Seconds from the first signal to a hard exit."""
ORPHAN_LIMIT_S = 2.0
"""The same after the launcher has died."""
LIFELINE_VARIABLE = "QUIRE_LIFELINE_FD"
EPOCH_OFFSET_VARIABLE = "QUIRE_EPOCH_OFFSET_NS"
"""What a launcher has its processes add to the machine's monotonic clock to get their epochs."""
HARD_EXIT = 70
TICK_S = 1.0

_log = structlog.get_logger()


def epoch() -> Epoch:
    """Return the name of this boot; take it once at start (and anew after waking up).

    It must be above those of earlier boots, or peers refuse it as an old one. Below one launcher it is,
    whatever is done to the wall clock; else only where that is not set back by more than a restart takes.
    """
    offset = os.environ.get(EPOCH_OFFSET_VARIABLE)
    now_ns = time.time_ns() if offset is None else time.monotonic_ns() + int(offset)
    return Epoch(now_ns // 1000)


def epoch_offset_ns() -> int:
    """Return what makes wall time of the monotonic clock now."""
    return time.time_ns() - time.monotonic_ns()


class Lifecycle:
    """What a service's main gets: when to stop, where to run background tasks."""

    def __init__(self, name: str, group: asyncio.TaskGroup, drain_limit_s: float = DRAIN_LIMIT_S) -> None:
        self.name = name
        self.epoch = epoch()
        self.stopping = asyncio.Event()
        """Set by the first signal: say not-serving, admit nothing, finish what runs, return from main."""
        self.drain_limit_s = drain_limit_s
        self._group = group
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_wake: list[Callable[[float], None]] = []

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run `work` in the background until main returns. Its failure is logged and ends the process."""
        task = self._group.create_task(self._supervised(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # It was never begun when cancelled at once.
        return task

    def on_wake(self, callback: Callable[[float], None]) -> None:
        """Call `callback(seconds)` when this process did not run for so long that its peers hold it for dead.

        Take a new epoch then, and drop what was held.
        """
        self._on_wake.append(callback)

    def stop(self, reason: str, *, limit_s: float | None = None) -> None:
        """Begin to drain; the process is gone after the limit whatever happens. A second call exits now."""
        if self.stopping.is_set():
            _log.warning("exit_now", reason=reason)
            os._exit(HARD_EXIT)
        limit_s = self.drain_limit_s if limit_s is None else limit_s
        _log.info("draining", reason=reason, limit_s=limit_s)
        _exit_after(limit_s)
        self.stopping.set()

    async def _supervised(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except FatalError:
            raise
        except Exception as exc:
            _log.error("background_task_failed", task=name, exc_info=exc)
            raise

    async def _watch_ticks(self, last: float) -> None:
        while True:
            await next_tick(TICK_S)
            now = time.monotonic()
            if now - last > DEAD_AFTER_S:
                _log.warning("woke_up", missing_s=round(now - last, 3))
                self.epoch = epoch()
                for callback in self._on_wake:
                    callback(now - last)
            last = now

    def _cancel_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def run(
    name: str, main: Callable[[Lifecycle], Awaitable[None]], *, drain_limit_s: float = DRAIN_LIMIT_S
) -> int:
    """Run `main` until it returns; return the process's exit code.

    SIGTERM or SIGINT sets `lifecycle.stopping`, a second one exits at once.

    Raises:
        FatalError: For `entry` to show.
    """
    try:
        asyncio.run(_supervise(name, main, drain_limit_s))
    except BaseExceptionGroup as group:
        fatal = _first_fatal(group)
        if fatal is not None:
            raise fatal from group
        _log.error("process_failed", exc_info=group)
        return 1
    return 0


async def _supervise(name: str, main: Callable[[Lifecycle], Awaitable[None]], drain_limit_s: float) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        lifecycle = Lifecycle(name, group, drain_limit_s)
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, lifecycle.stop, signal.Signals(signum).name)
        _hold_lifeline(loop, lifecycle)
        lifecycle.spawn(lifecycle._watch_ticks(time.monotonic()), name="ticks")
        try:
            await main(lifecycle)
        finally:
            lifecycle._cancel_tasks()


def _hold_lifeline(loop: asyncio.AbstractEventLoop, lifecycle: Lifecycle) -> None:
    """Stop when the pipe named by QUIRE_LIFELINE_FD ends: the process that started us is gone."""
    text = os.environ.pop(LIFELINE_VARIABLE, "")
    if not text.isdigit():
        return
    fd = int(text)
    os.set_inheritable(fd, False)

    def wait() -> None:
        while os.read(fd, 1):
            pass
        _exit_after(ORPHAN_LIMIT_S)
        if not loop.is_closed():
            loop.call_soon_threadsafe(_orphaned, lifecycle)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def _orphaned(lifecycle: Lifecycle) -> None:
    if not lifecycle.stopping.is_set():
        lifecycle.stop("launcher_gone", limit_s=ORPHAN_LIMIT_S)


def _exit_after(limit_s: float) -> None:
    """Leave the process after `limit_s`, from a thread: it works with a blocked loop too."""

    def leave() -> None:
        _log.error("drain_limit_reached", limit_s=limit_s)
        os._exit(HARD_EXIT)

    timer = threading.Timer(limit_s, leave)
    timer.daemon = True
    timer.start()


def _first_fatal(group: BaseExceptionGroup[BaseException]) -> FatalError | None:
    for error in group.exceptions:
        if isinstance(error, FatalError):
            return error
        if isinstance(error, BaseExceptionGroup) and (found := _first_fatal(error)) is not None:
            return found
    return None
