"""Ask one process whether it is up, and later whether it is alive.

Knows the three questions (gRPC health, PING, /healthz); does not act on the answers.
"""

import asyncio
from types import TracebackType
from typing import Self

from services.chassis.grpc import create_channel, is_serving
from services.launcher.topology import LOOPBACK, Health, Process

_LIMIT_S = 2.0


class HealthCheck:
    """Questions to one process; a context manager, because it keeps a channel open until it is up."""

    def __init__(self, spec: Process, host: str = LOOPBACK) -> None:
        self._spec = spec
        self._host = LOOPBACK if host in ("0.0.0.0", "::") else host
        self._channel = create_channel(f"{self._host}:{spec.port}") if spec.health is Health.GRPC else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def is_up(self) -> bool:
        """Whether it welcomes work."""
        if self._channel is None:
            return await _ask(LOOPBACK, self._spec.port, b"PING\r\n", b"+PONG")
        return await is_serving(self._channel, limit_s=_LIMIT_S)

    async def until_up(self, period_s: float) -> None:
        """Return when it is up; asks every `period_s` seconds."""
        up = False
        while not up:
            up = await self.is_up()
            await asyncio.sleep(0 if up else period_s)

    async def is_alive(self) -> bool:
        """Whether it is worth keeping, busy or draining as it may be."""
        if self._spec.probe_port is None:
            return await self.is_up()
        question = b"GET /healthz HTTP/1.1\r\nhost: probe\r\n\r\n"
        return await _ask(LOOPBACK, self._spec.probe_port, question, b"HTTP/1.1 200")


async def _ask(host: str, port: int, question: bytes, answer: bytes) -> bool:
    writer = None
    try:
        async with asyncio.timeout(_LIMIT_S):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(question)
            return await reader.readexactly(len(answer)) == answer
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    finally:
        if writer is not None:
            writer.close()
