"""Serve the HTTP door by uvicorn, inside the process' own event loop and under its own signals.

Knows sockets, limits on how long and how much a client may take before it says what it wants, and how to
stop. Knows no route.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from asyncio import Transport
from collections.abc import Iterator
from typing import Any

import orjson
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.http.credentials import names_of
from gateway.http.errors import body_of
from services.chassis.grpc import require_free_port
from services.chassis.metrics import Metrics
from services.chassis.ticks import until_tick
from services.domain.errors import InvalidField

CERTIFICATE = "quire.certificate"
"""Key in the scope of the names in the certificate that the caller has shown."""
ABORT = "quire.abort"
"""Key in the scope of a function that cuts the connection without waiting for what is still to be sent."""
HEAD_LIMIT_S = 15.0
"""Seconds in which a request's line and headers must have come, from the first byte or the connection on."""
MAX_HEAD_BYTES = 64 * 1024
KEEP_ALIVE_S = 75.0
"""Seconds that a silent connection is kept: longer than proxies and client pools keep theirs."""
BACKLOG = 2048
STOP_GRACE_S = 1.0
"""Seconds for answers on their way when the door is closed."""


_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n"
)


class HttpServer:
    """One listening door: `bind`, then `run` in the background, then `stop`."""

    def __init__(
        self, app: ASGIApp, *, host: str, metrics: Metrics, tls: ssl.SSLContext | None = None
    ) -> None:
        self._host = host
        self._tls = tls
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,  # type: ignore[arg-type]
                timeout_graceful_shutdown=STOP_GRACE_S,  # type: ignore[arg-type]
            )
        )
        self._socket: socket.socket | None = None
        self._ended = asyncio.Event()
        gauge = metrics.gauge("quire_http_connections", "Clients connected to the HTTP door")
        metrics.before_render(lambda: gauge.set(self.num_connections))

    @property
    def num_connections(self) -> int:
        """Clients that are connected now."""
        return len(self._server.server_state.connections)

    def bind(self, port: int) -> int:
        """Listen on `port` (0: any free one) and return the port; calls wait until `run`.

        Raises:
            BusyPort: Somebody else listens there.
            FatalError: The address cannot be used.
        """
        require_free_port(self._host, port)
        self._server.config.load()
        self._server.config.ssl = self._tls
        self._socket = _listening(self._host, port)
        bound: int = self._socket.getsockname()[1]
        return bound

    async def run(self) -> None:
        """Serve until `stop`."""
        assert self._socket is not None
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Close the port; answers on their way get `STOP_GRACE_S`."""
        self._server.exit_soon()
        await self._ended.wait()


def _listening(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )[0]
    # Only on a socket that says TCP by number does asyncio switch Nagle's delay off: 40 ms per answer.
    listening = socket.socket(family, kind, proto)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._exit = asyncio.Event()

    def exit_soon(self) -> None:
        self.should_exit = True
        self._exit.set()

    async def main_loop(self) -> None:
        """Tick at the end, and each second for the `date` header; uvicorn itself does ten times as often."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_tick(time.monotonic(), 1.0)):
                    await self._exit.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: they are the process' business."""
        yield


class _Protocol(HttpToolsProtocol):
    """Closes a connection that takes too long, or too many bytes, to say what it wants."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _names: tuple[str, ...] = ()

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._names = names_of(transport.get_extra_info("peercert") or {})
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP in the words of every other refusal."""
        body = orjson.dumps(body_of(InvalidField("request", "must be a valid HTTP/1.1 request")))
        self.transport.write(_BAD_REQUEST % len(body) + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: Any = self.scope
        scope[ABORT] = self.transport.abort
        scope[CERTIFICATE] = self._names
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_is_here()
        super().on_headers_complete()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(HEAD_LIMIT_S, self.transport.abort)

    def _head_is_here(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
