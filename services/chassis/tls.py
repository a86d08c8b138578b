"""TLS of one process: its identity, whom it trusts, and what is made of both for every hop and door.

Every use takes the files as they are at that moment: a server at each handshake, a channel at each new call,
so a renewed certificate needs no restart. Services are recognised by the name of their role in their
certificate, not by their address. Knows nothing of tenants and of what a call may do.
"""

import contextlib
import datetime
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog

from services.chassis.certificate import Files, Identity
from services.chassis.config import config_file, load
from services.chassis.fatal import ConfigError
from services.chassis.following_channel import FollowingChannel, channel_credentials
from services.chassis.grpc import create_channel
from services.chassis.interceptors import guarded
from services.chassis.metrics import Metrics
from services.chassis.ticks import next_tick
from services.domain.errors import NotYours

SERVICES = ("gateway", "scheduler", "kvmanager", "worker")
OPERATOR = "operator"
"""The role of people's own tools: `quire status`, `drain`, `tenant`, and the launcher."""
MONITOR = "monitor"
"""The role of who reads metrics and may do nothing else."""
WARN_BEFORE_S = 14 * 86_400.0
LOOK_EVERY_S = 60.0
WARN_EVERY_S = 86_400.0

_log = structlog.get_logger()


def peer_name(role: str) -> str:
    """Return the DNS name by which a certificate says that its holder has a role."""
    return f"{role}.quire.internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS between all services and at all doors. `{service}` in a path stands for who reads it: gateway,
    scheduler, kvmanager, worker, or operator for the commands of people."""

    ca: Path | None = None
    """Certificates of the authority that all services' and callers' certificates are from (PEM)."""
    cert: Path | None = None
    """Own certificate chain (PEM)."""
    key: Path | None = None
    """Its private key (PEM)."""
    open_metrics: bool = False
    """Let whoever reaches a probe port read /metrics without a certificate."""

    def __post_init__(self) -> None:
        given = [name for name in ("ca", "cert", "key") if getattr(self, name) is not None]
        if given and len(given) < 3:
            missing = next(name for name in ("ca", "cert", "key") if name not in given)
            raise ValueError(f"{missing} must be given too: ca, cert and key belong together")

    def files_of(self, role: str) -> Files | None:
        """Return the files of one role; None: no TLS."""
        if self.ca is None or self.cert is None or self.key is None:
            return None
        ca, cert, key = (
            Path(str(path).replace("{service}", role)).expanduser() for path in (self.ca, self.cert, self.key)
        )
        return Files(ca=ca, cert=cert, key=key)


def load_tls(
    role: str, argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> "Tls | None":
    """Return what `[tls]` of the configuration (or QUIRE_TLS_CA, _CERT and _KEY) gives a role, if anything.

    Raises:
        ConfigError: One line naming the file and what is wrong with it.
    """
    path = config_file(argv, environ)
    words = () if path is None else ("--config", str(path))
    config = load(TlsConfig, "tls", argv=words, environ=environ)
    files = config.files_of(role)
    return None if files is None else Tls(files, role, open_metrics=config.open_metrics)


class Tls:
    """See the module.

    Args:
        role: Whose name the certificate must have; None: of no service.
        open_metrics: As `TlsConfig`'s.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(self, files: Files, role: str | None = None, *, open_metrics: bool = False) -> None:
        self.files = files
        self.open_metrics = open_metrics
        self._name = None if role is None else peer_name(role)
        self._identity = files.read(name=self._name)
        self._refused: object = None

    @property
    def identity(self) -> Identity:
        """The files' content now; while they cannot be used, what they held before."""
        stamp = self.files.stamp()
        if stamp not in (self._identity.stamp, self._refused):
            try:
                self._identity = self.files.read(name=self._name)
                _log.info("certificates_renewed", expires=_shown(self._identity.expiry))
            except ConfigError as error:
                # Once for each state of the files: a pair may be half written just now.
                self._refused = stamp
                _log.error("certificates_unusable", error=str(error))
        return self._identity

    def server(self, *, asks: bool) -> grpc.ServerCredentials:
        """Return what a gRPC port listens with.

        Args:
            asks: Whether a caller must show a certificate of our authority.
        """
        served = self.identity

        def configuration() -> Any:
            return grpc.ssl_server_certificate_configuration([served.pair], served.ca if asks else None)

        def renewed() -> Any:
            nonlocal served
            if self.identity is served:
                return None
            served = self.identity
            return configuration()

        return grpc.dynamic_ssl_server_credentials(configuration(), renewed, asks)

    def context(self) -> ssl.SSLContext:
        """Return what an HTTP port listens with; a caller may show a certificate of our authority."""
        newest = (self.identity, self._new_context())

        def on_hello(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
            nonlocal newest
            if self.identity is not newest[0]:
                with contextlib.suppress(OSError):
                    newest = (self.identity, self._new_context())
            connection.context = newest[1]

        newest[1].sni_callback = on_hello
        return newest[1]

    def client_context(self) -> ssl.SSLContext:
        """Return what an HTTP port is asked with: it must prove a certificate of our authority."""
        context = ssl.create_default_context(cafile=self.files.ca)
        if self.files.cert is not None:
            context.load_cert_chain(self.files.cert, self.files.key, password=lambda: b"")
        return context

    def channel(self, target: str, to: str) -> grpc.aio.Channel:
        """Return a channel to a service that must prove to have the role `to`."""
        name = None if self.files.cert is None else peer_name(to)
        return FollowingChannel(lambda: self.identity, target, name)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return what a caller connects with, as the files are now."""
        return channel_credentials(self.identity)

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        assert self.files.cert is not None, "a server has a certificate"
        context.load_cert_chain(self.files.cert, self.files.key, password=lambda: b"")
        if self.files.ca is not None:
            context.load_verify_locations(self.files.ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


async def watch_expiry(metrics: Metrics, *used: Tls) -> None:
    """Say for ever when files end, as a metric and, two weeks before, in the log."""
    expiry = metrics.gauge(
        "quire_tls_expiry_timestamp_seconds", "When a TLS file is of no use any more", ["file"]
    )
    warn_at = time.time()
    while True:
        ends = {path: end for one in used for path, end in one.identity.expiry.items()}
        for path, end in ends.items():
            expiry.set(end, str(path))
        if time.time() >= warn_at and min(ends.values()) - time.time() < WARN_BEFORE_S:
            warn_at = time.time() + WARN_EVERY_S
            _log.warning("certificates_expire", expires=_shown(ends))
        await next_tick(LOOK_EVERY_S)


def open_channel(tls: Tls | None, target: str, to: str) -> grpc.aio.Channel:
    """Return a channel to a service in the role `to`: in plain text without TLS."""
    return create_channel(target) if tls is None else tls.channel(target, to)


def peers_only(tls: Tls | None, *roles: str) -> tuple[grpc.aio.ServerInterceptor, ...]:
    """Return what refuses callers of other roles; nothing in plain text, which knows no roles."""
    return () if tls is None else (_PeerInterceptor(roles),)


def names_of(context: grpc.aio.ServicerContext) -> tuple[str, ...]:
    """Return the common name and the alternative names of the certificate that a caller has shown."""
    shown = context.auth_context()
    found = [*shown.get("x509_common_name", ()), *shown.get("x509_subject_alternative_name", ())]
    return tuple(dict.fromkeys(name.decode("utf-8", "replace") for name in found))


class _PeerInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The authority certifies tenants' callers too: they must not get past the gateway."""

    def __init__(self, roles: Sequence[str]) -> None:
        self._names = frozenset(map(peer_name, roles))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        return None if handler is None else guarded(handler, self._guard)

    @asynccontextmanager
    async def _guard(self, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        if self._names.isdisjoint(names_of(context)):
            raise NotYours(f"the certificate must name one of {', '.join(sorted(self._names))}")
        yield


def _shown(expiry: Mapping[Path, float]) -> dict[str, str]:
    return {
        str(path): datetime.datetime.fromtimestamp(end, datetime.UTC).isoformat(timespec="minutes")
        for path, end in expiry.items()
    }
