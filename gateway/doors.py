"""The gateway's doors: gRPC for callers, gRPC for administration, and HTTP. They are bound here, and drained.

Knows nothing of what is behind a door, nor when one is started.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc
import structlog

from gateway.admin_service import SERVICE_NAME as ADMIN_SERVICE_NAME
from gateway.admin_service import AdminService
from gateway.config import GatewayConfig
from gateway.doors_tls import DoorsTls
from gateway.generate import new_request_id
from gateway.http.app import build_app
from gateway.http.server import HttpServer
from gateway.service import SERVICE_NAME, GatewayService
from gateway.wiring import Parts
from protos.admin.v1 import admin_pb2_grpc
from protos.gateway.v1 import gateway_pb2_grpc
from services.chassis.errors import ErrorInterceptor
from services.chassis.grpc import SETTINGS, HealthControl, add_health_and_reflection, bind, create_server
from services.chassis.metrics import Metrics
from services.chassis.tls import OPERATOR, peers_only
from services.domain.errors import Draining, ErrorDetail

CLOSE_GRACE_S = 0.5
"""Seconds for the last statuses to reach their callers."""
DRAIN_MARGIN_S = 3.0
"""Of the drain limit, what is kept for settling and closing."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """All that callers reach."""

    servers: Sequence[grpc.aio.Server]
    healths: Sequence[HealthControl]
    http: HttpServer


def open_doors(
    config: GatewayConfig, parts: Parts, tls: DoorsTls, metrics: Metrics
) -> tuple[Doors, Mapping[str, int | None]]:
    """Return all doors, bound and not started, callers' before administration's, and their ports by name.

    Raises:
        BusyPort: Somebody else listens on one.
        FatalError: An address cannot be used.
    """
    server, health, port, certificate_port = _build_server(config, parts, tls)
    admin, admin_health, admin_port = build_admin_server(config, parts, tls)
    http, http_port = _build_http(config, parts, tls, metrics)
    return Doors(servers=(server, admin), healths=(health, admin_health), http=http), {
        "port": port,
        "http_port": http_port,
        "certificate_port": certificate_port,
        "admin_port": admin_port,
    }


def _build_server(
    config: GatewayConfig, parts: Parts, tls: DoorsTls
) -> tuple[grpc.aio.Server, HealthControl, int, int | None]:
    """Return the gRPC door, bound and not started, its health, its port, and that for certificates."""
    server = create_server(interceptors=[ErrorInterceptor()])
    service = GatewayService(parts.generate, parts.queries, parts.auth, parts.metrics)
    gateway_pb2_grpc.add_GenerateServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health = add_health_and_reflection(server, [SERVICE_NAME])
    port = bind(server, f"{config.host}:{config.port}", credentials=tls.main_door())
    certificate_port = None
    if config.certificate_port is not None:
        address = f"{config.host}:{config.certificate_port}"
        certificate_port = bind(server, address, credentials=tls.certificate_door())
    return server, health, port, certificate_port


def build_admin_server(
    config: GatewayConfig, parts: Parts, tls: DoorsTls
) -> tuple[grpc.aio.Server, HealthControl, int]:
    """Return the admin door, bound and not started, its health, and its port."""
    server = create_server(interceptors=[ErrorInterceptor(), *peers_only(tls.inside, OPERATOR)])
    admin = parts.admin
    service = AdminService(parts.auth, admin.tenants, admin.keys, admin.log, parts.queries.usage)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health = add_health_and_reflection(server, [ADMIN_SERVICE_NAME])
    address = f"{config.admin_host}:{config.admin_port}"
    return server, health, bind(server, address, credentials=tls.admin_door())


def _build_http(
    config: GatewayConfig, parts: Parts, tls: DoorsTls, metrics: Metrics
) -> tuple[HttpServer, int]:
    """Return the HTTP door, bound and not running, and its port."""
    app = build_app(
        parts.generate,
        parts.auth,
        parts.queries,
        new_request_id=new_request_id,
        serialized=parts.metrics.serialized,
        max_body_bytes=SETTINGS.max_message_bytes,
    )
    public = None if tls.public is None else tls.public.context()
    http = HttpServer(app, host=config.host, metrics=metrics, tls=public)
    return http, http.bind(config.http_port)


async def drain(parts: Parts, doors: Doors, limit_s: float) -> None:
    """Not ready -> admit nothing -> finish what runs -> close."""
    for health in doors.healths:
        health.set_not_serving()
    parts.generate.is_draining = True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await parts.table.emptied()
    parts.table.fail_all(lambda: Draining("the gateway shuts down", ErrorDetail(retry_after_s=1.0)))
    await asyncio.gather(*(server.stop(CLOSE_GRACE_S) for server in doors.servers), doors.http.stop())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_MARGIN_S / 2):
            await parts.settler.drained()
    _log.info("drained", num_left=len(parts.table), num_unsettled=parts.settler.num_pending)
