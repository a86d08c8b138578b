"""Redis with a short limit per call, a breaker in front, and one connection that is never one reply behind.

Knows transport only: no key, no script of any store. Every trouble of the dependency is a DependencyDown;
what to do then is the caller's declared policy.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
import redis.exceptions
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from services.chassis.fatal import ConfigError
from services.chassis.redis_pipe import NUM_SLICES, RedisPipe, Value
from services.chassis.redis_trouble import tls_trouble
from services.chassis.tls import Tls
from services.domain.errors import DependencyDown, NotRun

CALL_LIMIT_S = 0.05
MAX_TOLD = 48
"""Characters of an error reply that are logged."""

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


def connect(url: str, *, limit_s: float = CALL_LIMIT_S, tls: Tls | None = None) -> "RedisStore":
    """Return a store for `redis://host:port/db` (or `rediss://`, `unix://`); connects lazily.

    Args:
        tls: Authority, certificate and key for a `rediss://` that names no `ssl_...` of its own; each
            connection takes the files as they are then.

    Raises:
        ConfigError: `url` is no such address. It is not repeated: a password may be in it.
    """
    shown = {}
    if tls is not None and url.startswith("rediss://") and "ssl_" not in url.partition("?")[2]:
        own = {"ca_certs": tls.files.ca, "certfile": tls.files.cert, "keyfile": tls.files.key}
        shown = {f"ssl_{name}": str(path) for name, path in own.items() if path is not None}
    try:
        pool = redis.asyncio.ConnectionPool.from_url(
            url,
            socket_connect_timeout=1.0,
            socket_timeout=None,  # Limits are the pipe's.
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
            protocol=2,
            **shown,
        )
    except ValueError as exc:
        raise ConfigError(f"no address of a Redis (REDIS_URL, --redis-url, redis_url): {exc}") from exc
    return RedisStore(pool.make_connection, limit_s=limit_s)


def check_secure(url: str | None, insecure: bool, tls: Tls | None) -> None:
    """Raise where everything has TLS and Redis, on another machine, would be spoken to in plain text.

    Args:
        insecure: The operator's word that this is meant.

    Raises:
        ConfigError: Names the setting; the address is not repeated.
    """
    if url is None or tls is None or insecure or not url.startswith("redis://"):
        return
    with contextlib.suppress(ValueError):  # What is no address `connect` refuses.
        if urlsplit(url).hostname in _LOOPBACK:
            return
    raise ConfigError(
        "redis_url must begin with rediss:// where [tls] is given: quotas and keys' digests would travel in "
        "plain text (--insecure lets them)"
    )


class RedisStore:
    """Commands and scripts against one Redis. Replies are what RESP2 carries: bytes, int, None or lists.

    Args:
        make_connection: Makes a `redis.asyncio.Connection`, one for each attempt to reach Redis.
        limit_s: Silence of Redis after which a call fails, where the call names none.
    """

    def __init__(
        self,
        make_connection: Callable[[], Any],
        *,
        limit_s: float = CALL_LIMIT_S,
        breaker: Breaker | None = None,
    ) -> None:
        self._make_connection = make_connection
        self._limit_s = limit_s
        self._breaker = breaker or Breaker()
        self._pipe: RedisPipe | None = None
        self._told = ""

    @property
    def is_up(self) -> bool:
        """Whether the breaker lets calls through; a gauge, not a promise."""
        return self._breaker.is_closed

    @property
    def num_waiting(self) -> int:
        """Calls that Redis has not answered yet."""
        return 0 if self._pipe is None else self._pipe.num_waiting

    async def execute(self, *command: Value, limit_s: float | None = None) -> Any:
        """Run one command.

        Raises:
            DependencyDown: Redis did not answer in time or refused, or the breaker is open; NotRun where it
                surely did nothing.
        """
        return (await self.pipeline([command], limit_s=limit_s))[0]

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
        try:
            return await self.execute("EVALSHA", script.sha, len(keys), *keys, *args, limit_s=limit_s)
        except redis.exceptions.NoScriptError:
            return await self.execute("EVAL", script.source, len(keys), *keys, *args, limit_s=limit_s)

    async def pipeline(
        self, commands: Sequence[Sequence[Value]], *, limit_s: float | None = None
    ) -> list[Any]:
        """Run `commands` in one round trip, not as a transaction.

        Raises:
            DependencyDown: As `execute`. Some of the commands may have run.
            NoScriptError: Redis does not know the script of an EVALSHA.
        """
        if not self._breaker.try_pass(time.monotonic()):
            raise NotRun("redis does not answer; calls are held back for a moment")
        pipe = self._opened()
        try:
            replies = await pipe.send(commands, self._limit_s if limit_s is None else limit_s)
        except _TROUBLE as exc:
            raise _down(exc, DependencyDown if pipe.is_open else NotRun) from exc
        except BaseException:
            self._breaker.gave_up()
            raise
        error = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if isinstance(error, _TROUBLE) or str(error).startswith(_UNABLE):
            assert error is not None
            self._failed(error)
            if isinstance(error, redis.exceptions.ReadOnlyError):
                pipe.give_up(error)  # A new connection may find the new primary.
            raise _down(error, NotRun if len(commands) == 1 else DependencyDown) from error
        if not self.is_up:
            _log.info("redis_up")
        self._breaker.succeeded()
        if isinstance(error, redis.exceptions.NoScriptError):
            raise error
        if error is not None:
            # It answers others, so the breaker stays closed; what lives on it must not end by one wrong key.
            self._tell(error)
            raise DependencyDown(f"redis refuses a command ({type(error).__name__})") from error
        return replies

    async def close(self) -> None:
        """Close the connection; what still waits fails."""
        if self._pipe is not None:
            await self._pipe.close()

    def _opened(self) -> RedisPipe:
        if self._pipe is None or self._pipe.is_lost:
            self._pipe = RedisPipe(self._make_connection(), self._limit_s / NUM_SLICES, self._failed)
        return self._pipe

    def _tell(self, refusal: Exception) -> None:
        """Log a refusal unless the last was the same; only its beginning: arguments may come after that."""
        beginning = str(refusal)[:MAX_TOLD]
        if beginning != self._told:
            _log.error("redis_refuses", error=type(refusal).__name__, reply=beginning)
        self._told = beginning

    def _failed(self, error: BaseException) -> None:
        """Count one failure, however many calls it took along."""
        was_up = self.is_up
        self._breaker.failed(time.monotonic())
        if was_up and not self.is_up:
            _log.error("redis_down", error=type(error).__name__, reason=tls_trouble(error))


def _down(error: BaseException, kind: type[DependencyDown]) -> DependencyDown:
    return kind(f"redis does not answer ({type(error).__name__})")


_TROUBLE = (
    TimeoutError,
    OSError,
    redis.exceptions.ConnectionError,
    redis.exceptions.InvalidResponse,  # What answers is no Redis, or speaks TLS.
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.NoPermissionError,
    redis.exceptions.AskError,
    redis.exceptions.MovedError,
    redis.exceptions.TryAgainError,
)
_LOOPBACK = (None, "localhost", "127.0.0.1", "::1")
_UNABLE = ("NOREPLICAS ", "MISCONF ", "BUSY ")
"""Beginnings of error replies by which Redis takes no command just now."""
