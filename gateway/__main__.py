"""Run the gateway: `python -m gateway [flags]`.

Brings configuration, parts, stores and doors together; decides nothing.
"""

import contextlib
import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import structlog

from gateway.backlog import Backlog
from gateway.config import GatewayConfig, directory_of, load_config
from gateway.doors import DRAIN_MARGIN_S, drain, open_doors
from gateway.doors_tls import DoorsTls, load_doors_tls
from gateway.generate import GenerateSettings
from gateway.models import LocalModel, load_model
from gateway.stores.journal import Journal
from gateway.stores.quota_redis import RedisQuota
from gateway.stores.tenants import RedisTenantLog
from gateway.wiring import Parts, build_parts
from services.artifacts.errors import ArtifactError
from services.chassis import lifecycle
from services.chassis.config_tenants import DeclaredTenants
from services.chassis.fatal import FatalError, entry
from services.chassis.grpc import HealthControl, check_bind
from services.chassis.lifecycle import Lifecycle
from services.chassis.logging import configure_logging
from services.chassis.metrics import Metrics, sample_loop_lag
from services.chassis.probes import Probes
from services.chassis.redis import RedisStore, check_secure, connect
from services.chassis.telemetry import configure_tracing
from services.chassis.tls import open_channel, watch_expiry
from services.domain.errors import DependencyDown

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
        settings=generate_settings(config),
        tls=tls.inside,
        backlog=open_backlog(config.journal),
    )
    await _serve_doors(config, parts, tls, life, metrics=metrics, redis=redis)
    await channel.close()
    await redis.close()
    await background.close()
    executor.shutdown(wait=False, cancel_futures=True)


async def _serve_doors(
    config: GatewayConfig,
    parts: Parts,
    tls: DoorsTls,
    life: Lifecycle,
    *,
    metrics: Metrics,
    redis: RedisStore,
) -> None:
    """Open probes and doors, then drain them once told to stop."""
    doors, ports = open_doors(config, parts, tls, metrics)
    public, administration = doors.healths
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
        for server in doors.servers:
            await server.start()
        administration.set_serving()
        life.spawn(doors.http.run(), name="http")
        life.spawn(_watch(parts, public), name="ready")
        life.spawn(sample_loop_lag(metrics), name="loop_lag")
        if tls.all:
            life.spawn(watch_expiry(metrics, *tls.all), name="tls")
        _log.info("listening", host=config.host, probe_port=probes.port, **ports)
        await life.stopping.wait()
        await drain(parts, doors, life.drain_limit_s - DRAIN_MARGIN_S)


def generate_settings(config: GatewayConfig) -> GenerateSettings:
    """Return what the configuration says of serving one request."""
    return GenerateSettings(
        max_unread_tokens=config.max_unread_tokens,
        long_from_tokens=config.long_from_tokens,
        retry_percent=config.retry_percent,
    )


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
