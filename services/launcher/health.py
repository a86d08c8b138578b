"""Ask one process whether it is up, and later whether it is alive.

Knows the three questions (gRPC health, PING, /healthz); does not act on the answers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from services.chassis.grpc import is_serving
from services.chassis.tls import Tls, open_channel, peer_name
from services.launcher.ports import LOOPBACK
from services.launcher.topology import Health, Process

_LIMIT_S = 2.0


class HealthCheck:
    """Questions to one process. No connection is kept once it is up: kept ones are pinged on both sides."""

    def __init__(self, spec: Process, host: str = LOOPBACK, tls: Tls | None = None) -> None:
        self._spec = spec
        self._tls = tls
        self._host = LOOPBACK if host in ("0.0.0.0", "::") else host

    async def until_up(self, period_s: float) -> None:
        """Return when it welcomes work; asks every `period_s` seconds."""
        if self._spec.health is Health.REDIS:
            await _until(self._answers_ping, period_s)
            return
        async with open_channel(self._tls, f"{self._host}:{self._spec.port}", self._spec.role) as channel:
            await _until(partial(is_serving, channel, limit_s=_LIMIT_S), period_s)

    async def is_alive(self) -> bool:
        """Whether it is worth keeping, busy or draining as it may be."""
        if self._spec.health is Health.REDIS:
            return await self._answers_ping()
        assert self._spec.probe_port is not None, "what answers no PING has a probe port"
        question = b"GET /healthz HTTP/1.1\r\nhost: probe\r\n\r\n"
        port = partial(asyncio.open_connection, LOOPBACK, self._spec.probe_port)
        if self._tls is not None:
            name = peer_name(self._spec.role)
            port = partial(port, ssl=self._tls.client_context(), server_hostname=name)
        return await _ask(port, question, b"HTTP/1.1 200")

    async def _answers_ping(self) -> bool:
        port = partial(asyncio.open_connection, LOOPBACK, self._spec.port)
        if self._spec.socket is not None:
            port = partial(asyncio.open_unix_connection, self._spec.socket)
        return await _ask(port, b"PING\r\n", b"+PONG")


async def _until(ask: Callable[[], Awaitable[bool]], period_s: float) -> None:
    up = False
    while not up:
        up = await ask()
        await asyncio.sleep(0 if up else period_s)


_Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def _ask(connect: _Open, question: bytes, answer: bytes) -> bool:
    writer = None
    try:
        async with asyncio.timeout(_LIMIT_S):
            reader, writer = await connect()
            writer.write(question)
            return await reader.readexactly(len(answer)) == answer
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    finally:
        if writer is not None:
            writer.close()
