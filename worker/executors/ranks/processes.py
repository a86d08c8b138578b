"""The processes of all ranks but 0: started, told what to do, watched, ended. Leaves none behind.

A rank ends as soon as its socket closes, so none outlives rank 0, however that goes. Knows processes and
frames; knows nothing of what a step computes.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.chassis.fatal import FatalError
from worker.executors.base import Executor, ExecutorFault
from worker.executors.ranks.messages import Channel, Closed, Kind, RankProfile, RankSpec

LOAD_LIMIT_S = 600.0
"""Seconds that a rank may take to load its share or to allocate its pages."""
END_LIMIT_S = 5.0
"""Seconds from closing a rank's socket to killing it."""
_BLAME_S = 2.0
"""Seconds in which a rank that broke an exchange is seen to have ended."""
FOLLOWER = "worker.executors.ranks.follower"
"""The module that every rank but 0 runs."""


class RankLost(ExecutorFault):
    """A rank of this worker is gone: none of the others can go on."""


@dataclass(slots=True)
class _Rank:
    spec: RankSpec
    process: subprocess.Popen[bytes]
    channel: Channel
    _last_words: str | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return f"rank {self.spec.rank} of {self.spec.size}"

    def ending(self) -> str:
        """Say how a rank that has ended did, and why, where it could say so; from any thread."""
        code = self.process.returncode
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        with self._reading:
            if self._last_words is None:
                self._last_words = self._read_last_words()
        return f"{self.name} ended ({how})" + (f": {self._last_words}" if self._last_words else "")

    def _read_last_words(self) -> str:
        with contextlib.suppress(Closed, TimeoutError):
            while True:
                kind, body = self.channel.receive(limit_s=_BLAME_S)
                if kind is Kind.FAILED:
                    return str(json.loads(body))
        return ""


class RankProcesses:
    """All ranks but this process."""

    def __init__(self, specs: Sequence[RankSpec]) -> None:
        """Start a process for each spec."""
        self._is_closing = False
        self._ranks: list[_Rank] = []
        try:
            for spec in specs:
                self._ranks.append(_start(spec))
        except BaseException:
            self.close()
            raise

    def wait_loaded(self) -> list[RankProfile]:
        """Wait until every rank has read its weights.

        Raises:
            FatalError: One could not, ended, or took too long.
        """
        return [RankProfile.from_json(body) for body in self._wait(Kind.LOADED)]

    def tell(self, kind: Kind, body: bytes = b"") -> None:
        """Send all ranks the same frame.

        Raises:
            RankLost: One is gone, or reads nothing for its limit.
        """
        for rank in self._ranks:
            try:
                rank.channel.send(kind, body, limit_s=rank.spec.limit_s)
            except Closed as exc:
                raise self._lost() or RankLost(f"{rank.name} reads nothing") from exc

    def allocate(self, num_pages: int, captures: bool, here: Executor) -> None:
        """Allocate pages in all ranks, this process's `here` among them (see `Executor.allocate`).

        Raises:
            RankLost: A rank could not, ended, or took too long.
            ExecutorFault: From `here`.
        """
        self.tell(Kind.ALLOCATE, json.dumps({"num_pages": num_pages, "captures": captures}).encode())
        here.allocate(num_pages, captures=captures)
        try:
            self._wait(Kind.ALLOCATED)
        except FatalError as exc:
            raise RankLost(str(exc)) from exc

    def blame(self, fault: ExecutorFault) -> ExecutorFault:
        """Return why a step failed here: a rank that has ended, else what was seen."""
        return self._lost(_BLAME_S) or fault

    def watch(self, on_lost: Callable[[ExecutorFault], None]) -> None:
        """Call `on_lost`, from another thread, when a rank ends before `close`."""

        def wait(rank: _Rank) -> None:
            rank.process.wait()
            if not self._is_closing:
                on_lost(RankLost(rank.ending()))

        for rank in self._ranks:
            threading.Thread(target=wait, args=(rank,), name=f"rank-{rank.spec.rank}", daemon=True).start()

    def close(self) -> None:
        """End all ranks and wait for it."""
        self._is_closing = True
        for rank in self._ranks:
            rank.channel.close()
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(END_LIMIT_S)
                continue
            rank.process.kill()
            rank.process.wait()

    def _wait(self, expected: Kind) -> list[bytearray]:
        deadline = time.monotonic() + LOAD_LIMIT_S
        return [_answer(rank, expected, deadline) for rank in self._ranks]

    def _lost(self, limit_s: float = 0.0) -> RankLost | None:
        """Return which rank has ended, waiting a little for one that is about to."""
        deadline = time.monotonic() + limit_s
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, deadline - time.monotonic()))
                return RankLost(rank.ending())
        return None


def _start(spec: RankSpec) -> _Rank:
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", FOLLOWER, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            # Ctrl-C on the terminal reaches rank 0 alone, which ends the others when it has finished.
            start_new_session=True,
        )
    finally:
        theirs.close()
    rank = _Rank(spec, process, Channel(ours))
    with contextlib.suppress(Closed):  # Whoever waits for its answer will see that it has ended.
        rank.channel.send_json(Kind.SPEC, spec)
    return rank


def _answer(rank: _Rank, expected: Kind, deadline: float) -> bytearray:
    """Return what a rank answers.

    Raises:
        FatalError: It failed, ended, or did not answer in time.
    """
    try:
        kind, body = rank.channel.receive(limit_s=max(0.001, deadline - time.monotonic()))
    except TimeoutError as exc:
        raise FatalError(f"{rank.name} did not answer in {LOAD_LIMIT_S:.0f} s; restart the worker") from exc
    except Closed as exc:
        rank.process.kill()
        rank.process.wait()
        raise FatalError(f"{rank.ending()}: see what it logged, then restart the worker") from exc
    if kind is Kind.FAILED:
        raise FatalError(f"{rank.name}: {json.loads(body)}")
    assert kind is expected
    return body
