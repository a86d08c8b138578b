"""gRPC servers and channels, both ends from one settings object.

Knows sizes, keepalive, ports and health; knows nothing of any service's methods.
"""

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.chassis.fatal import BusyPort, ConfigError, FatalError


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """What client and server must agree on. A client that pings faster than allowed is cut off."""

    max_message_bytes: int = 16 * 2**20
    """Largest message in either direction, on both ends."""
    refusable_bytes: int = 32 * 2**20
    """A larger request is taken up to this size, to be refused in our words; beyond it gRPC refuses."""
    ping_every_ms: int = 10_000
    """A connection is pinged after that much silence, also without calls."""
    ping_timeout_ms: int = 5_000
    """An unanswered ping closes the connection."""
    least_ping_interval_ms: int = 5_000
    """The server cuts a client that pings more often."""

    def __post_init__(self) -> None:
        if self.ping_every_ms < 2 * self.least_ping_interval_ms:
            raise ValueError(
                f"ping_every_ms must be at least twice least_ping_interval_ms, got {self.ping_every_ms} "
                f"and {self.least_ping_interval_ms}"
            )

    def both(self) -> list[tuple[str, int]]:
        return [
            ("grpc.keepalive_time_ms", self.ping_every_ms),
            ("grpc.keepalive_timeout_ms", self.ping_timeout_ms),
            ("grpc.http2.ping_timeout_ms", self.ping_timeout_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]

    def server(self) -> list[tuple[str, int]]:
        return [
            *self.both(),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.refusable_bytes),
            ("grpc.http2.min_ping_interval_without_data_ms", self.least_ping_interval_ms),
            ("grpc.so_reuseport", 0),
        ]

    def channel(self) -> list[tuple[str, int]]:
        # Own subchannels and a short back-off: a peer that restarted is found again within a second.
        # No proxy: peers are named by address, and an http_proxy of the host must not see them.
        return [
            *self.both(),
            ("grpc.max_send_message_length", self.refusable_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 1_000),
        ]


SETTINGS = GrpcSettings()


def create_server(
    *, interceptors: Sequence[grpc.aio.ServerInterceptor] = (), settings: GrpcSettings = SETTINGS
) -> grpc.aio.Server:
    """Return a server without ports; `bind` gives it one."""
    return grpc.aio.server(interceptors=list(interceptors), options=settings.server())


def bind(server: grpc.aio.Server, address: str, *, credentials: grpc.ServerCredentials | None = None) -> int:
    """Let `server` listen on `host:port` (port 0: any free one) and return the port.

    Raises:
        BusyPort: Somebody else listens there.
        FatalError: The address cannot be used.
    """
    host, port = split_address(address)
    require_free_port(host, port)
    try:
        if credentials is not None:
            bound = server.add_secure_port(address, credentials)
        else:
            bound = server.add_insecure_port(address)
    except RuntimeError as exc:
        raise BusyPort(host, port) from exc
    if not bound:
        raise BusyPort(host, port)
    return int(bound)


def create_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
    options: Iterable[tuple[str, int | str]] = (),
    settings: GrpcSettings = SETTINGS,
) -> grpc.aio.Channel:
    """Return a channel to `target`; connects lazily. `options` go on top of the shared ones."""
    merged: list[tuple[str, int | str]] = [*settings.channel(), *options]
    if credentials is not None:
        return grpc.aio.secure_channel(target, credentials, options=merged, interceptors=list(interceptors))
    return grpc.aio.insecure_channel(target, options=merged, interceptors=list(interceptors))


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`, also `[::1]:port`.

    Raises:
        ConfigError: It is no address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"an address must be host:port, got {address!r}")
    return host.strip("[]"), int(port)


def require_free_port(host: str, port: int) -> None:
    """Raise unless `port` can be listened on now (before gRPC tries and writes to stderr itself).

    Raises:
        BusyPort: Somebody listens there.
        FatalError: The host is none of this machine's, or the port needs privileges.
    """
    try:
        family, kind, proto, _, sockaddr = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(sockaddr)
            probe.listen(1)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise BusyPort(host, port) from exc
        reason = (
            exc.strerror if exc.errno is None else os.strerror(exc.errno) if exc.errno > 0 else exc.strerror
        )
        raise FatalError(
            f"cannot listen on {host}:{port}: {reason}; choose another --host or --port"
        ) from exc


def check_bind(host: str, insecure: bool, has_credentials: bool) -> None:
    """Refuse to listen beyond loopback without credentials, unless told so in so many words.

    Raises:
        ConfigError: `host` is reachable from outside and nothing protects it.
    """
    if insecure or has_credentials or _is_loopback(host):
        return
    raise ConfigError(
        f"listening on {host} reaches beyond this machine: give it TLS ([tls] of the configuration), "
        "or say --insecure"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class HealthControl(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """`grpc.health.v1` over one state for all of a server's services; NOT_SERVING until told otherwise."""

    def __init__(self, service_names: Sequence[str]) -> None:
        self._names = frozenset(service_names) | {""}
        self._serving = False
        self._changed = asyncio.Event()

    @property
    def serving(self) -> bool:
        return self._serving

    def set_serving(self) -> None:
        """Say that calls are welcome."""
        self._set(True)

    def set_not_serving(self) -> None:
        """Say that calls are not welcome: warming up, or draining."""
        self._set(False)

    def _set(self, serving: bool) -> None:
        self._serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def _response(self) -> Any:
        statuses = health_pb2.HealthCheckResponse
        return statuses(status=statuses.SERVING if self._serving else statuses.NOT_SERVING)

    async def Check(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return self._response()

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        known = request.service in self._names
        statuses = health_pb2.HealthCheckResponse
        while True:
            changed = self._changed
            yield self._response() if known else statuses(status=statuses.SERVICE_UNKNOWN)
            await changed.wait()


def add_health_and_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> HealthControl:
    """Add `grpc.health.v1` (NOT_SERVING first) and reflection for the named services.

    Args:
        service_names: Full names, e.g. `DESCRIPTOR.services_by_name["GenerateService"].full_name`.
    """
    health = HealthControl(service_names)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    reflection.enable_server_reflection((*service_names, health_name, reflection.SERVICE_NAME), server)
    return health


async def is_serving(channel: grpc.aio.Channel, *, limit_s: float = 1.0) -> bool:
    """Ask a server whether it welcomes calls; no answer in time is a no."""
    check = health_pb2_grpc.HealthStub(channel).Check
    try:
        response = await check(health_pb2.HealthCheckRequest(), timeout=limit_s)
    except grpc.RpcError:
        return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
