"""HTTP /healthz, /readyz and /metrics for orchestrators and Prometheus, on a port of their own.

Answers GET with one line or the metrics and closes; knows no other HTTP. With TLS it speaks HTTPS: an
orchestrator, which has no certificate, is told of health; metrics go to who shows one of the right role.
"""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from services.chassis.grpc import require_free_port
from services.chassis.metrics import CONTENT_TYPE, Metrics
from services.chassis.tls import MONITOR, OPERATOR, Tls, peer_name

_MAX_REQUEST_BYTES = 8192
_LIMIT_S = 5.0
_TEXT = "text/plain; charset=utf-8"


class Probes:
    """The probe server of one process; `async with Probes(...)` or start/stop.

    Args:
        port: 0 takes any free one (see `port` afterwards).
        is_ready: False asks for no new work: warming up or draining.
        metrics: Served at /metrics; None answers 404 there.
        tls: None: plain text, and no questions asked.
    """

    def __init__(
        self,
        port: int,
        *,
        is_ready: Callable[[], bool],
        metrics: Metrics | None = None,
        host: str = "127.0.0.1",
        tls: Tls | None = None,
    ) -> None:
        self.port = port
        self._tls = tls
        self._host = host
        self._is_ready = is_ready
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            BusyPort: Somebody else listens there.
        """
        require_free_port(self._host, self.port)
        secure = None if self._tls is None else self._tls.context()
        self._server = await asyncio.start_server(
            self._serve, self._host, self.port, limit=_MAX_REQUEST_BYTES, reuse_port=False, ssl=secure
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(_LIMIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = head.partition(b" ")
                path = rest.split(b" ")[0].split(b"?")[0]
                status, kind, body = self._answer(method, path, writer.get_extra_info("peercert"))
                writer.write(
                    f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
                    "connection: close\r\n\r\n".encode()
                    + (b"" if method == b"HEAD" else body)
                )
                await writer.drain()
        writer.close()

    def _answer(self, method: bytes, path: bytes, certificate: Any) -> tuple[str, str, bytes]:
        if method not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", _TEXT, b"GET only\n"
        if path == b"/metrics" and self._metrics is not None:
            if self._tls is not None and not self._tls.open_metrics and not _may_read_metrics(certificate):
                return "403 Forbidden", _TEXT, f"show a certificate that names {_READERS}\n".encode()
            return "200 OK", CONTENT_TYPE, self._metrics.render()
        if path == b"/healthz":
            return "200 OK", _TEXT, b"live\n"
        if path == b"/readyz":
            if self._is_ready():
                return "200 OK", _TEXT, b"ready\n"
            return "503 Service Unavailable", _TEXT, b"not ready\n"
        return "404 Not Found", _TEXT, b"/healthz, /readyz or /metrics\n"


_READERS = " or ".join(map(peer_name, (MONITOR, OPERATOR)))


def _may_read_metrics(certificate: Any) -> bool:
    """Tell by what `ssl` says of a certificate; our authority's callers have one too, of no role."""
    names = (certificate or {}).get("subjectAltName", ())
    return any(("DNS", peer_name(role)) in names for role in (MONITOR, OPERATOR))
