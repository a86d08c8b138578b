"""Long-lived duplex streams between our processes: outbox, heartbeats, reconnecting.

Knows when a peer is dead and how a stream is written by one writer; does not know any message.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, NoReturn, TypeVar

import grpc
import structlog

from services.chassis.gather import each, take_together
from services.chassis.ticks import next_tick
from services.domain.errors import DependencyDown, ServeError

T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")

HEARTBEAT_S = 1.0
"""Seconds between two signs of life, in both directions."""
DEAD_AFTER_S = 3.5
"""Seconds of silence after which a peer is dead: three heartbeats missed."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.05, 1.0
STEADY_AFTER_S = 2.0
"""Seconds that a session lives whose link is well again."""

_log = structlog.get_logger()


class Outbox(Generic[T]):
    """Bounded queue that one writer drains in order; putting never waits and never fails on a closed one.

    A full outbox closes itself: its reader does not keep up, and a stream that lost a message is not to be
    trusted. Whoever owns the stream sees it end and starts anew.
    """

    def __init__(self, max_items: int = 4096) -> None:
        self._items: deque[T] = deque()
        self._max_items = max_items
        self._ready = asyncio.Event()
        self._closed = False
        self.gathers = False
        """The peer reads several messages as one (`gather`); to be set once it has said so."""
        self.overflowed = False
        """It was closed because it was full."""
        self.num_dropped = 0
        """Items put after it was closed, or that made it overflow."""

    def put_nowait(self, item: T) -> bool:
        """Append `item`; False when the outbox is closed or has just overflowed."""
        if self._closed or len(self._items) >= self._max_items:
            self.overflowed = self.overflowed or not self._closed
            self.num_dropped += 1
            self.close()
            return False
        self._items.append(item)
        self._ready.set()
        return True

    def close(self) -> None:
        """Take nothing more; what is inside is still delivered, unless it overflowed. Idempotent."""
        self._closed = True
        if self.overflowed:
            self._items.clear()
        self._ready.set()

    @property
    def closed(self) -> bool:
        return self._closed

    def __len__(self) -> int:
        return len(self._items)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return take_together(self._items) if self.gathers else self._items.popleft()


class Liveness:
    """When a peer was last heard of."""

    def __init__(self, now: float) -> None:
        self._last = now

    def saw(self, now: float) -> None:
        self._last = now

    def excuse(self, stalled_s: float) -> None:
        """Hold a time in which this process itself did not run against nobody.

        What a peer said meanwhile lies unread in the socket, so its silence is not known yet.
        """
        self._last += stalled_s

    def is_dead(self, now: float) -> bool:
        return now - self._last > DEAD_AFTER_S


class PeerSilent(DependencyDown):
    """The peer missed three heartbeats (-> UNAVAILABLE)."""

    reason = "PEER_SILENT"


async def run_duplex(
    call: Callable[[Outbox[Out]], Any],
    outbox: Outbox[Out],
    on_message: Callable[[In], None],
    heartbeat: Callable[[], Out],
) -> None:
    """Be the client of one duplex stream until it ends.

    Sends what is put into `outbox` and a heartbeat each second, hands every message to `on_message`, and
    gives up on a peer that is silent. Put the Hello into the outbox before calling.

    Args:
        call: The stub's method, e.g. `stub.ConnectWorker`.

    Raises:
        grpc.aio.AioRpcError: The call failed.
        PeerSilent: Nothing was heard for `DEAD_AFTER_S`.
    """
    stream = call(outbox)
    liveness = Liveness(time.monotonic())
    try:
        await _first_of(_read(stream, on_message, liveness), _beat(outbox, heartbeat, liveness))
    finally:
        outbox.close()
        stream.cancel()


async def serve_duplex(
    context: grpc.aio.ServicerContext,
    requests: AsyncIterator[In],
    outbox: Outbox[Out],
    on_message: Callable[[In], None],
    heartbeat: Callable[[], Out],
) -> None:
    """Be the server of one duplex stream until the peer leaves, is silent, or `outbox` is closed and empty.

    The handler is a plain coroutine (`async def Connect(self, requests, context)`), reads the Hello by
    `first_message`, and releases what belongs to the peer in its own `finally`.

    Raises:
        PeerSilent: Nothing was heard for `DEAD_AFTER_S`.
    """
    liveness = Liveness(time.monotonic())
    try:
        await _first_of(
            _read(requests, on_message, liveness),
            _write(context, outbox),
            _beat(outbox, heartbeat, liveness),
        )
    finally:
        outbox.close()


async def first_message(requests: AsyncIterator[In]) -> In:
    """Wait for a peer's Hello.

    Raises:
        PeerSilent: It did not come in time.
    """
    try:
        async with asyncio.timeout(DEAD_AFTER_S):
            return await anext(aiter(requests))
    except (TimeoutError, StopAsyncIteration) as exc:
        raise PeerSilent("no hello on the stream") from exc


async def keep_connected(
    name: str,
    session: Callable[[], Awaitable[None]],
    *,
    jitter: random.Random | None = None,
) -> NoReturn:
    """Run `session` again and again, each time one connection, with a jittered pause in between.

    The pause doubles from 0.05 s to 1 s and starts over after a session that lived for `STEADY_AFTER_S`.
    A lost peer is expected; any other exception is a bug and ends the loop.

    Args:
        name: For the log, e.g. `scheduler`.
        session: Connects, says hello, runs until the stream ends (see `run_duplex`).
    """
    draw = jitter or random.Random()
    pause_s = MIN_BACKOFF_S
    while True:
        started, reason = time.monotonic(), "closed"
        try:
            await session()
        except grpc.RpcError as error:
            reason = error.code().name
        except ServeError as error:
            reason = error.reason
        except (OSError, TimeoutError) as error:
            reason = type(error).__name__
        lived_s = time.monotonic() - started
        if lived_s >= STEADY_AFTER_S:
            pause_s = MIN_BACKOFF_S
        _log.warning("link_lost", peer=name, reason=reason, lived_s=round(lived_s, 3), pause_s=pause_s)
        await asyncio.sleep(pause_s * draw.uniform(0.5, 1.0))
        pause_s = min(MAX_BACKOFF_S, pause_s * 2)


async def _read(messages: AsyncIterator[In], on_message: Callable[[In], None], liveness: Liveness) -> None:
    try:
        async for message in messages:
            liveness.saw(time.monotonic())
            for one in each(message):
                on_message(one)
    except asyncio.CancelledError as exc:
        # gRPC raises this too when the call, not the task, was cancelled.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise PeerSilent("the call was cancelled") from exc


async def _write(context: grpc.aio.ServicerContext, outbox: Outbox[Out]) -> None:
    async for item in outbox:
        await context.write(item)


async def _beat(outbox: Outbox[Out], heartbeat: Callable[[], Out], liveness: Liveness) -> None:
    while not liveness.is_dead(time.monotonic()):
        if outbox.overflowed:
            raise PeerSilent("the peer does not read its stream")
        if not outbox.closed:
            outbox.put_nowait(heartbeat())
        began = time.monotonic()
        await next_tick(HEARTBEAT_S)
        liveness.excuse(max(0.0, time.monotonic() - began - 2 * HEARTBEAT_S))
    raise PeerSilent("the peer missed its heartbeats")


async def _first_of(*work: Any) -> None:
    """Run all until the first ends; end the others, and fail as the first one failed."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
