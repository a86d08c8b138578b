"""Redis with a short limit per call, a breaker in front, and connections that are never one reply behind.

Knows transport only: no key, no script of any store. Every trouble of the dependency is a DependencyDown;
what to do then is the caller's declared policy.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import redis.asyncio
import redis.exceptions
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from services.domain.errors import DependencyDown

T = TypeVar("T")
Value = str | bytes | int | float

CALL_LIMIT_S = 0.05
MAX_CONNECTIONS = 16
NUM_SLICES = 10
"""A limit is waited for in so many slices; a busy loop makes a slice last longer, and it counts no more."""
MAX_LIMITS = 20
"""Whatever Redis answers to others, a call ends after so many times its limit."""

_log = structlog.get_logger()


class Script:
    """A Lua script and the digest Redis knows it by."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


class Breaker:
    """Refuses calls to a dependency that failed several times running, and lets one through now and then.

    closed -(failures)-> open -(pause)-> half open: one probe -> closed or open again. Reads no clock.
    """

    def __init__(self, *, failures: int = 3, pause_s: float = 0.5) -> None:
        self._limit = failures
        self._pause_s = pause_s
        self._failures = 0
        self._retry_at = 0.0
        self._probing = False

    @property
    def is_closed(self) -> bool:
        return self._failures < self._limit

    def try_pass(self, now: float) -> bool:
        """Take leave to call; the caller must then report `succeeded`, `failed` or `gave_up`."""
        if self.is_closed:
            return True
        if self._probing or now < self._retry_at:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._probing = False

    def failed(self, now: float) -> None:
        self._failures += 1
        self._probing = False
        self._retry_at = now + self._pause_s

    def gave_up(self) -> None:
        """The call ended without saying anything about the dependency (it was cancelled)."""
        self._probing = False


def connect(
    url: str, *, limit_s: float = CALL_LIMIT_S, max_connections: int = MAX_CONNECTIONS
) -> "RedisStore":
    """Return a store for `redis://host:port/db` (or `rediss://`, `unix://`); connects lazily."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=None,  # The limit of the call covers the wait for a connection.
        socket_connect_timeout=1.0,
        socket_timeout=None,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        protocol=2,
    )
    client = redis.asyncio.Redis.from_pool(pool)
    client.response_callbacks.clear()  # Replies stay as they are on the wire.
    return RedisStore(client, limit_s=limit_s)


class RedisStore:
    """Commands and scripts against one Redis. Replies are what RESP2 carries: bytes, int, None or lists."""

    def __init__(self, client: Any, *, limit_s: float = CALL_LIMIT_S, breaker: Breaker | None = None) -> None:
        self._client = client
        self._limit_s = limit_s
        self._breaker = breaker or Breaker()
        self._num_replies = 0

    @property
    def is_up(self) -> bool:
        """Whether the breaker lets calls through; a gauge, not a promise."""
        return self._breaker.is_closed

    async def execute(self, *command: Value, limit_s: float | None = None) -> Any:
        """Run one command.

        Raises:
            DependencyDown: Redis did not answer in time, or the breaker is open.
        """
        return await self._guarded(self._client.execute_command(*command), limit_s)

    async def run_script(
        self,
        script: Script,
        keys: Sequence[Value] = (),
        args: Sequence[Value] = (),
        *,
        limit_s: float | None = None,
    ) -> Any:
        """Run `script` by its digest; Redis is given its source when it does not know it (any more).

        Raises:
            DependencyDown: As `execute`. The script may have run: make it idempotent by an id in `args`.
        """
        return await self._guarded(self._run_script(script, keys, args), limit_s)

    async def pipeline(
        self, commands: Sequence[Sequence[Value]], *, limit_s: float | None = None
    ) -> list[Any]:
        """Run `commands` in one round trip, not as a transaction; an error reply is raised.

        Raises:
            DependencyDown: As `execute`. Some of the commands may have run.
        """
        return list(await self._guarded(self._run_pipeline(commands), limit_s))

    async def close(self) -> None:
        await self._client.aclose(close_connection_pool=True)

    async def _run_script(self, script: Script, keys: Sequence[Value], args: Sequence[Value]) -> Any:
        try:
            return await self._client.evalsha(script.sha, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            return await self._client.eval(script.source, len(keys), *keys, *args)

    async def _run_pipeline(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return list(await pipe.execute())

    async def _guarded(self, call: Awaitable[T], limit_s: float | None) -> T:
        """Run one call inside limit and breaker."""
        if not self._breaker.try_pass(time.monotonic()):
            if asyncio.iscoroutine(call):
                call.close()
            raise DependencyDown("redis does not answer; calls are held back for a moment")
        try:
            reply = await self._within(call, self._limit_s if limit_s is None else limit_s)
        except _TROUBLE as exc:
            was_up = self.is_up
            self._breaker.failed(time.monotonic())
            if was_up and not self.is_up:
                _log.error("redis_down", error=type(exc).__name__)
            raise DependencyDown(f"redis does not answer ({type(exc).__name__})") from exc
        except redis.exceptions.ResponseError:
            self._num_replies += 1
            self._breaker.succeeded()  # It answered: our command was wrong.
            raise
        except BaseException:
            self._breaker.gave_up()
            raise
        if not self.is_up:
            _log.info("redis_up")
        self._num_replies += 1
        self._breaker.succeeded()
        return reply

    async def _within(self, call: Awaitable[T], limit_s: float) -> T:
        """Return what `call` gives within `limit_s` in which nothing was heard from Redis.

        Time in which our own loop was late, or in which Redis answered other calls, does not count: a burst
        of calls makes its last ones wait for a connection, a dead Redis answers nobody.

        Raises:
            TimeoutError: No reply; the call has been cancelled.
        """
        task = asyncio.ensure_future(call)
        num_silent, num_replies = 0, self._num_replies
        try:
            for _ in range(MAX_LIMITS * NUM_SLICES):
                await asyncio.wait((task,), timeout=limit_s / NUM_SLICES)
                num_silent += 1
                if self._num_replies != num_replies:
                    num_silent, num_replies = 0, self._num_replies
                if task.done() or num_silent == NUM_SLICES:
                    break
            if not task.done():
                raise TimeoutError
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))


_TROUBLE = (
    TimeoutError,
    OSError,
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
)
