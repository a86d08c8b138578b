"""Run the scheduler: `python -m scheduler [flags]`.

Wires configuration, core, streams and probes; decides nothing.
"""

import contextlib
import sys
from functools import partial

import grpc
import structlog

from protos.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from scheduler.collector import collect_seldom
from scheduler.config import SchedulerConfig
from scheduler.core.outputs import AskMatch
from scheduler.core.request import Match
from scheduler.dispatcher import Dispatcher
from scheduler.metrics import SchedulerMetrics
from scheduler.quarantine_keeper import QuarantineKeeper
from scheduler.service import SchedulerService
from scheduler.stores.quarantine import RedisQuarantine
from services.chassis import lifecycle
from services.chassis.build import BUILD
from services.chassis.config import load
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
from services.chassis.redis import RedisStore, check_secure, connect
from services.chassis.telemetry import configure_tracing
from services.chassis.tls import OPERATOR, Tls, load_tls, open_channel, peers_only, watch_expiry
from services.domain.errors import DependencyDown
from services.domain.ids import RequestKey
from services.rpc.scheduler_kvmanager_link import KvManagerLink, MatchAnswer

STOP_GRACE_S = 2.0
"""Seconds that calls get to end once the streams are closed."""
_EXAMPLES = """examples:
  quire scheduler --kvmanager 10.0.0.7:50053 --redis-url redis://10.0.0.7:6379/0
  quire scheduler --batch-wait-ms 5 --max-waiting 500
  quire scheduler --config quire.toml --policy fifo
"""

_log = structlog.get_logger()


async def serve(config: SchedulerConfig, tls: Tls | None, life: Lifecycle) -> None:
    """Serve until told to stop."""
    metrics = Metrics()
    rules = config.rules()
    dispatcher = Dispatcher(
        rules,
        new_policy=config.new_policy,
        epoch=life.epoch,
        metrics=SchedulerMetrics(metrics, rules.bands),
    )
    service = SchedulerService(dispatcher, name=config.name, build=BUILD)
    server, health, port = _build_server(config, service, tls)
    channel = None if config.kvmanager is None else open_channel(tls, config.kvmanager, "kvmanager")
    redis = None if config.redis_url is None else connect(config.redis_url, tls=tls)
    probes = Probes(
        config.probe_port, is_ready=lambda: health.serving, metrics=metrics, host=config.host, tls=tls
    )
    async with probes:
        await server.start()
        life.spawn(dispatcher.run(), name="place")
        life.spawn(sample_loop_lag(metrics), name="loop_lag")
        if tls is not None:
            life.spawn(watch_expiry(metrics, tls), name="tls")
        life.on_wake(lambda _: dispatcher.restart(life.epoch))
        if channel is not None:
            life.spawn(link_kvmanager(config, dispatcher, channel).run(), name="kvmanager")
        if redis is not None:
            life.spawn((await _follow_quarantine(dispatcher, redis)).run(), name="quarantine")
        health.set_serving()
        _log.info("serving", host=config.host, port=port, probe_port=probes.port, term=dispatcher.term)
        await life.stopping.wait()
        # What waits stays with the gateways; whoever answers them next gets it.
        health.set_not_serving()
        service.draining = True
        dispatcher.close()
        await server.stop(STOP_GRACE_S)
        if channel is not None:
            await channel.close()
        if redis is not None:
            await redis.close()


def _build_server(
    config: SchedulerConfig, service: SchedulerService, tls: Tls | None
) -> tuple[grpc.aio.Server, HealthControl, int]:
    """Return the server, bound and not started, its health and its port."""
    server = create_server(interceptors=[ErrorInterceptor(), *peers_only(tls, "gateway", "worker", OPERATOR)])
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    names = [scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name]
    health = add_health_and_reflection(server, names)
    credentials = None if tls is None else tls.server(asks=True)
    return server, health, bind(server, f"{config.host}:{config.port}", credentials=credentials)


async def _follow_quarantine(dispatcher: Dispatcher, redis: RedisStore) -> QuarantineKeeper:
    """Take over what Redis says, if it answers; return what keeps to it, to be run."""
    keeper = QuarantineKeeper(RedisQuarantine(redis), lambda: dispatcher.core.faults.quarantine)
    with contextlib.suppress(DependencyDown):
        await keeper.follow()
    return keeper


def link_kvmanager(
    config: SchedulerConfig, dispatcher: Dispatcher, channel: grpc.aio.Channel
) -> KvManagerLink:
    """Let the dispatcher ask the kvmanager behind `channel` for matches; the caller runs the link."""

    def on_answer(key: RequestKey, answer: MatchAnswer) -> None:
        match = Match(
            at=dispatcher.now(),
            tokens=answer.tokens,
            miss_reason=answer.miss_reason,
            first_miss_token=answer.first_miss_token,
        )
        dispatcher.match_answered(key, match)

    link = KvManagerLink(
        channel,
        name=config.name,
        epoch=lambda: dispatcher.term,
        build=BUILD,
        on_answer=on_answer,
        on_connected=dispatcher.matching,
        on_caps=dispatcher.set_caps,
    )

    def ask(question: AskMatch, traceparent: str) -> None:
        acquire = question.acquire
        link.ask(
            acquire.key,
            acquire.block_hashes,
            tenant=acquire.tenant,
            own_salt=acquire.own_salt,
            namespace=question.namespace,
            traceparent=traceparent,
        )

    dispatcher.use_matches(ask)
    return link


def main() -> int:
    """Read the configuration and serve; return the exit code."""
    config = load(SchedulerConfig, "scheduler", examples=_EXAMPLES)
    tls = load_tls("scheduler")
    check_bind(config.host, config.insecure, tls is not None)
    check_secure(config.redis_url, config.insecure, tls)
    configure_logging(config.name, level=config.log_level)
    collect_seldom()
    end_tracing = configure_tracing(config.name, config.trace)
    try:
        return lifecycle.run(config.name, partial(serve, config, tls))
    finally:
        end_tracing()


if __name__ == "__main__":
    sys.exit(entry(main))
