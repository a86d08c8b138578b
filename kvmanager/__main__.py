"""Run the kvmanager: `python -m kvmanager [flags]`.

Wires configuration, manager, copy, streams and probes; decides nothing.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping
from functools import partial

import grpc
import structlog

from kvmanager.config import CapSources, KvManagerConfig, load_config
from kvmanager.core.eviction_policy import EvictionPolicy
from kvmanager.core.index_copy import IndexCopy
from kvmanager.manager import Manager
from kvmanager.metrics import IndexMetrics
from kvmanager.service import SERVICE_NAME, KvManagerService
from kvmanager.stores.redis import RedisIndexCopy
from kvmanager.stores.tenant_caps import PublishedCaps
from protos.kvmanager.v1 import kvmanager_pb2_grpc
from services.chassis import lifecycle
from services.chassis.build import BUILD
from services.chassis.errors import ErrorInterceptor
from services.chassis.fatal import entry
from services.chassis.grpc import (
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
from services.chassis.telemetry import configure_tracing, span
from services.chassis.ticks import next_tick
from services.chassis.tls import OPERATOR, Tls, load_tls, peers_only, watch_expiry
from services.domain.errors import DependencyDown
from services.domain.ids import TenantId

TICK_S = 0.5
RESTORE_LIMIT_S = 10.0
"""Seconds that reading the copy may take at start."""
STOP_GRACE_S = 2.0
"""Seconds that calls get to end once the streams are closed."""

_log = structlog.get_logger()


async def serve(config: KvManagerConfig, sources: CapSources, tls: Tls | None, life: Lifecycle) -> None:
    """Serve until told to stop."""
    metrics = Metrics()
    store = None if config.redis_url is None else connect(config.redis_url, tls=tls)
    published = None if store is None else PublishedCaps(store)
    caps = sources.with_published({} if published is None else await first_caps(published))
    copy = None if store is None else RedisIndexCopy(store)
    policy = EvictionPolicy(version=life.epoch, order=config.eviction_order, idle_ttl_s=config.idle_ttl_s)
    manager = Manager(
        caps=caps,
        policy=policy,
        metrics=IndexMetrics(metrics),
        copy=copy,
        expect_workers=config.expect_workers,
        epoch=life.epoch,
    )
    service = KvManagerService(manager, config.name, lambda: life.epoch, BUILD)
    server, health, port = _build_server(config, service, tls)
    probes = Probes(
        config.probe_port, is_ready=lambda: health.serving, metrics=metrics, host=config.host, tls=tls
    )
    async with probes:
        await restore(manager, copy)
        await server.start()
        life.spawn(_tick(manager), name="tick")
        life.spawn(sample_loop_lag(metrics), name="loop_lag")
        if tls is not None:
            life.spawn(watch_expiry(metrics, tls), name="tls")
        if published is not None:
            life.spawn(follow_caps(published, sources, manager, service), name="caps")
        if manager.writer is not None:
            life.spawn(manager.writer.run(), name="index_copy")
        health.set_serving()
        _log.info("serving", host=config.host, port=port, probe_port=probes.port, num_caps=len(caps))
        await life.stopping.wait()
        health.set_not_serving()
        service.drain()
        await server.stop(STOP_GRACE_S)
        if manager.writer is not None:
            await manager.writer.flush()
    if store is not None:
        await store.close()


def _build_server(
    config: KvManagerConfig, service: KvManagerService, tls: Tls | None
) -> tuple[grpc.aio.Server, HealthControl, int]:
    """Return the server, bound and not started, its health and its port."""
    server = create_server(
        interceptors=[ErrorInterceptor(), *peers_only(tls, "scheduler", "worker", OPERATOR)]
    )
    kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health = add_health_and_reflection(server, [SERVICE_NAME])
    credentials = None if tls is None else tls.server(asks=True)
    return server, health, bind(server, f"{config.host}:{config.port}", credentials=credentials)


async def restore(manager: Manager, copy: IndexCopy | None) -> None:
    """Read the copy once; where it cannot be read, the workers' snapshots do alone."""
    if copy is None:
        manager.history_unknown(time.monotonic())
        return
    try:
        with span("kvmanager.restore"):
            async with asyncio.timeout(RESTORE_LIMIT_S):
                copied = await copy.load()
    except (DependencyDown, TimeoutError) as error:
        _log.warning("index_copy_unreadable", error=type(error).__name__)
        manager.history_unknown(time.monotonic())
        return
    manager.restore(copied, time.monotonic())


async def first_caps(published: PublishedCaps) -> Mapping[TenantId, int]:
    """Return what was published last; nothing while Redis does not answer, then it comes later."""
    try:
        return await published.read() or {}
    except DependencyDown as error:
        _log.warning("caps_unreadable", error=type(error).__name__)
        return {}


async def follow_caps(
    published: PublishedCaps, sources: CapSources, manager: Manager, service: KvManagerService
) -> None:
    """Keep to what the admin door publishes, within a tick; while Redis is silent the last caps hold."""
    while True:
        await next_tick(TICK_S)
        with contextlib.suppress(DependencyDown):
            changed = await published.read()
            if changed is not None:
                manager.set_caps(sources.with_published(changed), time.monotonic())
                service.tell_caps()
                _log.info("caps_changed", num_caps=len(manager.caps))


async def _tick(manager: Manager) -> None:
    while True:
        manager.tick(time.monotonic())
        await next_tick(TICK_S)


def main() -> int:
    """Read the configuration and serve; return the exit code."""
    config, sources = load_config()
    tls = load_tls("kvmanager")
    check_bind(config.host, config.insecure, tls is not None)
    check_secure(config.redis_url, config.insecure, tls)
    configure_logging(config.name, level=config.log_level)
    end_tracing = configure_tracing(config.name, config.trace)
    try:
        return lifecycle.run(config.name, partial(serve, config, sources, tls))
    finally:
        end_tracing()


if __name__ == "__main__":
    sys.exit(entry(main))
