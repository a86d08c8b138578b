"""Start the planned processes, keep them running, end them in order. Leaves none behind.

Knows processes and whether they are up; does not know what they serve. Every child holds the read end of one
pipe, the lifeline: when this process is gone, whatever the reason, they see it end and stop by themselves.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from services.chassis.fatal import FatalError
from services.chassis.grpc import require_free_port
from services.chassis.lifecycle import EPOCH_OFFSET_VARIABLE, LIFELINE_VARIABLE, epoch_offset_ns
from services.chassis.ticks import next_tick
from services.chassis.tls import Tls
from services.launcher.board import Board
from services.launcher.child_log import how_far, why_it_ended
from services.launcher.health import HealthCheck
from services.launcher.ports import LOOPBACK
from services.launcher.topology import GUARD, Process

POLL_S = 0.1
START_LIMIT_S = 300.0
"""Seconds that all processes together may take to be up; again and again while one counts on in its log."""
DRAIN_LIMIT_S = 35.0
"""Seconds that one rank of processes may take to end; a little more than their own limit."""
ABORT_LIMIT_S = 3.0
MIN_RESTART_S, MAX_RESTART_S = 0.2, 5.0
STEADY_AFTER_S = 30.0
LIVENESS_PERIOD_S, LIVENESS_FAILURES = 5.0, 6
"""A process that gives no sign of life for six checks running is killed and started anew."""


class StartFailed(FatalError):
    """A process ended before everything was up."""


class State(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    UP = "up"
    RESTARTING = "restarting"
    ENDED = "ended"


class Child:
    """One planned process and what became of it."""

    def __init__(self, spec: Process, log: Path, changed: asyncio.Event) -> None:
        self.spec = spec
        self.log = log
        self._changed = changed
        self.state = State.WAITING
        self.since = time.monotonic()
        self.up = asyncio.Event()
        self.num_restarts = 0
        self.process: asyncio.subprocess.Process | None = None

    def become(self, state: State) -> None:
        self.state = state
        self.since = time.monotonic()
        (self.up.set if state is State.UP else self.up.clear)()
        self._changed.set()


def check_ports(specs: Sequence[Process], host: str) -> None:
    """Raise when a port that `specs` will need is taken.

    Args:
        host: Where the last of them (the gateway) listens.

    Raises:
        BusyPort: Names the port.
    """
    for spec in specs:
        for port in spec.ports:
            require_free_port(host if spec is specs[-1] and port != spec.probe_port else LOOPBACK, port)


class Supervisor:
    """Owns all children of one suite.

    Args:
        specs: In the order of their start (see `topology.plan`).
        folder: For their logs.
        host: Where the last of them (the gateway) listens.
        tls: What they are asked with whether they are up.
    """

    def __init__(
        self,
        specs: Sequence[Process],
        folder: Path,
        board: Board,
        *,
        host: str = LOOPBACK,
        tls: Tls | None = None,
    ) -> None:
        self._changed = asyncio.Event()
        self.children = [Child(spec, folder / f"{spec.name}.log", self._changed) for spec in specs]
        self._by_name = {child.spec.name: child for child in self.children}
        self._board = board
        self._host = host
        self._tls = tls
        self._started = False
        self._epoch_offset_ns = epoch_offset_ns()
        self._lifeline_read, self._lifeline_write = os.pipe()

    async def run(self, when_up: asyncio.Event, stopping: asyncio.Event) -> None:
        """Start everything, set `when_up`, keep it running until `stopping`, end it.

        Raises:
            StartFailed: A process ended before all were up; nothing is left running.
        """
        keepers: list[asyncio.Task[None]] = [
            asyncio.create_task(self._keep(c), name=c.spec.name) for c in self.children
        ]
        keepers.append(asyncio.create_task(self._say_when_up(when_up), name="start"))
        keepers.append(asyncio.create_task(self._show(), name="board"))
        stop = asyncio.create_task(stopping.wait(), name="stop")
        try:
            pending: set[asyncio.Task[Any]] = {*keepers, stop}
            while stop in pending and not any(task.exception() for task in {*keepers} - pending):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*keepers, stop):
                task.cancel()
            results = await asyncio.gather(*keepers, return_exceptions=True)
            if self._started and stopping.is_set():
                await self._drain()
            else:
                await self._end(self.children, ABORT_LIMIT_S)
            if self._started:
                self._board.changed(self.children)
        for result in results:
            if isinstance(result, Exception):
                raise result

    def kill_all(self) -> None:
        """End every child now, for a launcher that ends at once itself."""
        for child in self.children:
            if GUARD in child.spec.command:
                continue  # It ends its program once the launcher's lifeline is gone; killed, it could not.
            if child.process is not None and child.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.kill()

    async def _keep(self, child: Child) -> None:
        """Start `child`, and again whenever it ends."""
        for name in child.spec.needs:
            await self._by_name[name].up.wait()
        pause_s = MIN_RESTART_S
        while True:
            began = time.monotonic()
            child.become(State.STARTING)
            child.process = await self._spawn(child)
            checker = asyncio.create_task(self._check(child), name=f"check {child.spec.name}")
            try:
                exit_code = await child.process.wait()
            finally:
                checker.cancel()
                await asyncio.gather(checker, return_exceptions=True)
            if not self._started:
                raise StartFailed(
                    f"{child.spec.name}: {why_it_ended(child.log, exit_code)} (log: {child.log})"
                )
            child.num_restarts += 1
            child.become(State.RESTARTING)
            if time.monotonic() - began > STEADY_AFTER_S:
                pause_s = MIN_RESTART_S
            self._board.lost(child.spec.name, why_it_ended(child.log, exit_code), pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(MAX_RESTART_S, 2 * pause_s)

    async def _spawn(self, child: Child) -> asyncio.subprocess.Process:
        environment: Mapping[str, str] = {
            **os.environ,
            **{name: os.environ.get(name, value) for name, value in child.spec.environment.items()},
            "PYTHONUNBUFFERED": "1",
            LIFELINE_VARIABLE: str(self._lifeline_read),
            EPOCH_OFFSET_VARIABLE: str(self._epoch_offset_ns),
        }
        with child.log.open("ab") as log:
            # A session of its own: Ctrl-C on the terminal reaches us alone, and we end the others in order.
            return await asyncio.create_subprocess_exec(
                *child.spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(self._lifeline_read,),
                start_new_session=True,
            )

    async def _check(self, child: Child) -> None:
        """Notice that `child` is up; then kill it when it gives no sign of life for long."""
        host = self._host if child is self.children[-1] else LOOPBACK
        health = HealthCheck(child.spec, host, self._tls)
        await health.until_up(POLL_S)
        child.become(State.UP)
        failures = 0
        while failures < LIVENESS_FAILURES:
            await next_tick(LIVENESS_PERIOD_S)
            failures = 0 if await health.is_alive() else failures + 1
        assert child.process is not None
        self._board.note(f"{child.spec.name} gives no sign of life and is killed")
        with contextlib.suppress(ProcessLookupError):
            child.process.kill()

    async def _say_when_up(self, when_up: asyncio.Event) -> None:
        counts: list[object | None] = []
        is_up = False
        while not is_up:
            try:
                async with asyncio.timeout(START_LIMIT_S):
                    for child in self.children:
                        await child.up.wait()
                is_up = True
            except TimeoutError as exc:
                # What compiles kernels on a first start takes its time, and says how far it is.
                before, counts = counts, [how_far(child.log) for child in self.children]
                if counts == before or not any(counts):
                    late = ", ".join(c.spec.name for c in self.children if c.state is not State.UP)
                    raise StartFailed(
                        f"not up after {START_LIMIT_S:.0f} s: {late} (logs: {self.children[0].log.parent})"
                    ) from exc
        self._started = True
        self._board.changed(self.children)
        when_up.set()

    async def _show(self) -> None:
        while True:
            self._board.changed(self.children)
            if self._started:
                self._changed.clear()
                await self._changed.wait()
            else:
                await asyncio.sleep(POLL_S)  # What starts also tells its progress by its log.

    async def _drain(self) -> None:
        """End the gateway first, then the workers it needs to finish, then what they need."""
        gateway = [c for c in self.children if c.spec.name == "gateway"]
        workers = [c for c in self.children if c.spec.name.startswith("worker-")]
        redis = [c for c in self.children if c.spec.name == "redis"]
        middle = [c for c in self.children if c not in (*gateway, *workers, *redis)]
        for rank in (gateway, workers, middle, redis):
            await self._end(rank, DRAIN_LIMIT_S)

    async def _end(self, children: Sequence[Child], limit_s: float) -> None:
        """Ask `children` to end, and kill those that have not after `limit_s`."""
        alive = [c for c in children if c.process is not None and c.process.returncode is None]
        for child in alive:
            assert child.process is not None
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGTERM)
                child.process.send_signal(signal.SIGCONT)
        waits = [asyncio.ensure_future(c.process.wait()) for c in alive if c.process is not None]
        if waits:
            _, late = await asyncio.wait(waits, timeout=limit_s)
            for child, wait in zip(alive, waits, strict=True):
                if wait in late and child.process is not None:
                    self._board.note(f"{child.spec.name} did not end in {limit_s:.0f} s and is killed")
                    with contextlib.suppress(ProcessLookupError):
                        child.process.kill()
            await asyncio.gather(*waits)
        for child in children:
            child.become(State.ENDED)
