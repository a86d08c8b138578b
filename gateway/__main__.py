"""Run the gateway: `python -m gateway [flags]`.

Wires configuration, links, stores and doors; decides nothing.
"""

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import structlog

from gateway.admin_service import SERVICE_NAME as ADMIN_SERVICE_NAME
from gateway.admin_service import AdminService
from gateway.backlog import Backlog
from gateway.config import GatewayConfig, directory_of, load_config
from gateway.doors_tls import DoorsTls, load_doors_tls
from gateway.generate import GenerateSettings, new_request_id
from gateway.http.app import build_app
from gateway.http.server import HttpServer
from gateway.models import LocalModel, load_model
from gateway.service import SERVICE_NAME, GatewayService
from gateway.stores.journal import Journal
from gateway.stores.quota_redis import RedisQuota
from gateway.stores.tenants import RedisTenantLog
from gateway.wiring import Parts, build_parts
from protos.admin.v1 import admin_pb2_grpc
from protos.gateway.v1 import gateway_pb2_grpc
from services.artifacts.errors import ArtifactError
from services.chassis import lifecycle
from services.chassis.config_tenants import DeclaredTenants
from services.chassis.errors import ErrorInterceptor
from services.chassis.fatal import FatalError, entry
from services.chassis.grpc import (
    SETTINGS,
    HealthControl,
    add_health_and_reflection,
    bind,
    check_bind,
    create_server,
)
from services.chassis.lifecycle import Lifecycle
from services.chassis.logging import configure_logging
from services.chassis.metrics import Metrics, sample_loop_lag
from services.chassis.probes import Probes
from services.chassis.redis import check_secure, connect
from services.chassis.telemetry import configure_tracing
from services.chassis.tls import OPERATOR, open_channel, peers_only, watch_expiry
from services.domain.errors import DependencyDown, Draining, ErrorDetail

CLOSE_GRACE_S = 0.5
"""Seconds for the last statuses to reach their callers."""
DRAIN_MARGIN_S = 3.0
"""Of the drain limit, what is kept for settling and closing."""

_log = structlog.get_logger()


async def serve(config: GatewayConfig, declared: DeclaredTenants, tls: DoorsTls, life: Lifecycle) -> None:
    """Serve until told to stop, then finish what runs."""
    metrics = Metrics()
    server_key = config.server_key.encode() or secrets.token_bytes(32)
    if not config.server_key:
        _log.warning("server_key_drawn")
    redis = connect(config.redis_url, limit_s=config.redis_limit_ms / 1000, tls=tls.inside)
    background = connect(config.redis_url, limit_s=config.redis_limit_ms / 1000, tls=tls.inside)
    channel = open_channel(tls.inside, config.scheduler, "scheduler")
    executor = ThreadPoolExecutor(config.tokenizer_threads, thread_name_prefix="tokenize")
    parts = build_parts(
        life,
        name=config.name,
        scheduler_channel=channel,
        models=load_models(config),
        tenants=directory_of(declared, server_key, config.admin_key),
        tenant_log=RedisTenantLog(background),
        server_key=server_key,
        quota=RedisQuota(redis, background),
        executor=executor,
        metrics=metrics,
        max_live=config.max_live,
        settings=GenerateSettings(
            max_unread_tokens=config.max_unread_tokens,
            long_from_tokens=config.long_from_tokens,
            retry_percent=config.retry_percent,
        ),
        tls=tls.inside,
        backlog=open_backlog(config.journal),
    )
    server, health, port, certificate_port = build_server(config, parts, tls)
    admin, admin_health, admin_port = build_admin_server(config, parts, tls)
    http, http_port = build_http(config, parts, tls, metrics)
    probes = Probes(
        config.probe_port,
        is_ready=lambda: parts.is_ready,
        metrics=metrics,
        host=config.host,
        tls=tls.inside,
    )
    metrics.before_render(parts.observe_levels)
    async with probes:
        with contextlib.suppress(DependencyDown):
            await redis.execute("PING", limit_s=1.0)  # The first call would pay for the connection.
            await parts.admin.feed.refresh()
        await server.start()
        await admin.start()
        admin_health.set_serving()
        life.spawn(http.run(), name="http")
        life.spawn(_watch(parts, health), name="ready")
        life.spawn(sample_loop_lag(metrics), name="loop_lag")
        if tls.all:
            life.spawn(watch_expiry(metrics, *tls.all), name="tls")
        _log.info(
            "listening",
            host=config.host,
            port=port,
            http_port=http_port,
            certificate_port=certificate_port,
            admin_port=admin_port,
            probe_port=probes.port,
        )
        await life.stopping.wait()
        doors = Doors(servers=(server, admin), healths=(health, admin_health), http=http)
        await drain(parts, doors, life.drain_limit_s - DRAIN_MARGIN_S)
    await channel.close()
    await redis.close()
    await background.close()
    executor.shutdown(wait=False, cancel_futures=True)


def open_backlog(folder: Path | None) -> Backlog:
    """Return where settlements wait.

    Raises:
        FatalError: `folder` cannot be used.
    """
    boot = secrets.token_hex(8)
    try:
        return Backlog(boot, None if folder is None else Journal(folder.expanduser(), boot))
    except OSError as exc:
        raise FatalError(f"gateway: journal {folder} cannot be written: {exc.strerror}") from exc


def load_models(config: GatewayConfig) -> list[LocalModel]:
    """Read the models' tokenizers and templates.

    Raises:
        FatalError: One cannot be used.
    """
    try:
        return [load_model(name, path) for name, path in config.models().items()]
    except ArtifactError as exc:
        raise FatalError(str(exc)) from exc


def build_server(
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


def build_http(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """All that callers reach."""

    servers: Sequence[grpc.aio.Server]
    healths: Sequence[HealthControl]
    http: HttpServer


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


async def _watch(parts: Parts, health: HealthControl) -> None:
    """Keep health as things are."""
    while True:
        parts.changed.clear()
        if parts.is_ready != health.serving:
            if parts.is_ready:
                health.set_serving()
            else:
                health.set_not_serving()
            _log.info("serving" if health.serving else "not_serving")
        await parts.changed.wait()


def main() -> int:
    """Read the configuration and serve; return the exit code."""
    config, declared = load_config()
    tls = load_doors_tls(config)
    for host in (config.host, config.admin_host):
        check_bind(host, config.insecure, tls.public is not None)
    check_secure(config.redis_url, config.insecure, tls.inside)
    configure_logging(config.name, level=config.log_level)
    end_tracing = configure_tracing(config.name, config.trace)
    try:
        return lifecycle.run(config.name, partial(serve, config, declared, tls))
    finally:
        end_tracing()


if __name__ == "__main__":
    sys.exit(entry(main))
