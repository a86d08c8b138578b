"""One connection to Redis that all calls share: commands go out at once, replies come back in order.

A connection that stays silent is given up with all that waits on it, so no reply can ever reach a later
command. Knows when to give up; does not know what a command means, and does not try again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import redis.exceptions

Value = str | bytes | int | float

NUM_SLICES = 10
"""A limit is waited for in so many slices; a busy loop makes a slice last longer, and it counts no more."""
NUM_ROUNDS = 4
"""Turns of the loop that end a slice: so many may lie between a reply's arrival and its being read."""
MAX_LIMITS = 20
"""Whatever Redis answers to others, a call ends after so many times its limit."""


class _Call:
    """Commands sent together and their replies so far."""

    __slots__ = ("began", "future", "limit", "num_left", "replies")

    def __init__(self, num_commands: int, limit: int, began: int) -> None:
        self.num_left = num_commands
        self.limit = limit
        """In slices."""
        self.began = began
        """Number of the slice in which it was sent."""
        self.replies: list[Any] = []
        self.future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()


class RedisPipe:
    """Opens at once and works until it is lost or closed.

    Args:
        connection: A `redis.asyncio.Connection` of nobody else's, not connected yet.
        slice_s: How long nothing must be heard for one slice of a limit to be over.
        on_lost: Told once why the connection was given up with calls on it, before they learn of it.
    """

    def __init__(self, connection: Any, slice_s: float, on_lost: Callable[[BaseException], None]) -> None:
        self._connection = connection
        self._slice_s = slice_s
        self._on_lost = on_lost
        self._calls: deque[_Call] = deque()
        self._unsent: list[bytes] = []
        self._has_unsent = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._slice = 0
        """Number of slices that were over while somebody waited."""
        self._heard = 0
        """The slice of the last sign of life."""
        self.is_open = False
        """Whether it ever was connected: before, nothing was sent."""
        self.is_lost = False
        self._work = asyncio.create_task(self._run(), name="redis-pipe")

    @property
    def num_waiting(self) -> int:
        """Calls whose replies have not all come; those that were cancelled are among them."""
        return len(self._calls)

    def send(self, commands: Sequence[Sequence[Value]], limit_s: float) -> asyncio.Future[list[Any]]:
        """Send commands together.

        Args:
            limit_s: Silence after which the whole connection is given up.

        Returns:
            Their replies; an error reply is an exception among them. Fails with what `on_lost` was told.
        """
        assert not self.is_lost, "a lost pipe takes no commands"
        call = _Call(len(commands), max(1, round(limit_s / self._slice_s)), self._slice)
        self._calls.append(call)
        self._unsent += [_packed(command) for command in commands]
        self._has_unsent.set()
        if self._timer is None:
            self._arm()
        return call.future

    def give_up(self, error: BaseException) -> None:
        """Close the connection, which leads to the wrong server; what still waits fails with `error`."""
        self._lose(error)

    async def close(self) -> None:
        """Close the connection; what still waits fails."""
        self._lose(ConnectionError("the connection was closed here"))
        await asyncio.wait((self._work,))

    async def _run(self) -> None:
        try:
            await self._connection.connect()
            self._heard, self.is_open = self._slice, True
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(), name="redis-write")
                group.create_task(self._read(), name="redis-read")
        except* (OSError, redis.exceptions.RedisError) as errors:
            self._lose(errors.exceptions[0])
        finally:
            self._lose(ConnectionError("the connection is closed"))
            await self._connection.disconnect(nowait=True)

    async def _write(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            data, self._unsent = b"".join(self._unsent), []
            await self._connection.send_packed_command(data, check_health=False)

    async def _read(self) -> None:
        while True:
            try:
                reply = await self._connection.read_response()
            except redis.exceptions.ResponseError as error:
                reply = error
            if self.is_lost:
                return  # What waited has failed already.
            self._heard = self._slice
            call = self._calls[0]
            call.replies.append(reply)
            call.num_left -= 1
            if call.num_left == 0:
                self._calls.popleft()
                if not call.future.done():
                    call.future.set_result(call.replies)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._slice_s, self._on_slice, NUM_ROUNDS)

    def _on_slice(self, num_rounds: int) -> None:
        if num_rounds:
            self._timer = asyncio.get_running_loop().call_later(0, self._on_slice, num_rounds - 1)
            return
        self._timer = None
        if not self._calls:
            return
        self._slice += 1
        oldest = self._calls[0]
        is_silent = any(self._slice - max(call.began, self._heard) >= call.limit for call in self._calls)
        if is_silent or self._slice - oldest.began >= MAX_LIMITS * oldest.limit:
            self._lose(TimeoutError("silent for too long"))
        else:
            self._arm()

    def _lose(self, error: BaseException) -> None:
        """Give the connection up and fail what waits. Idempotent."""
        if self.is_lost:
            return
        self.is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        if asyncio.current_task() is not self._work:
            self._work.cancel()
        calls, self._calls = self._calls, deque()
        if calls:
            self._on_lost(error)
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)
                call.future.exception()  # Whoever was cancelled meanwhile does not fetch it.


def _packed(command: Sequence[Value]) -> bytes:
    """Return a command as Redis reads it. Source: RESP2, "Sending commands to a Redis server"."""
    parts = [b"*%d\r\n" % len(command)]
    for value in command:
        data = value if isinstance(value, bytes) else str(value).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
