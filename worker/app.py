"""One worker process wired together: the order in which it starts, watches itself, and stops.

Knows all parts and decides nothing about requests. Start: listen, load, first step, links, ready. Stop: not
ready, refuse, finish what runs, say why the rest ended, leave.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from protos.worker.v1 import worker_pb2_grpc
from services.chassis.build import BUILD
from services.chassis.errors import ErrorInterceptor
from services.chassis.fatal import EngineFailed
from services.chassis.grpc import (
    HealthControl,
    add_health_and_reflection,
    bind,
    check_bind,
    create_server,
)
from services.chassis.lifecycle import Lifecycle
from services.chassis.metrics import Metrics, sample_loop_lag
from services.chassis.probes import Probes
from services.chassis.ticks import next_tick
from services.chassis.tls import OPERATOR, Tls, open_channel, peers_only, watch_expiry
from services.domain.capacity import Capacity
from services.domain.errors import Draining, WorkerLost
from services.domain.ids import WorkerId
from services.rpc.worker_facts import WorkerFacts
from services.rpc.worker_kvmanager_link import WorkerKvManagerLink
from services.rpc.worker_scheduler_link import WorkerSchedulerLink
from worker.async_engine import AsyncEngine
from worker.config import WorkerConfig
from worker.daemon_thread import in_daemon_thread
from worker.device_telemetry import tell_devices
from worker.engine.config import EngineConfig
from worker.engine.step_scheduler import StepScheduler
from worker.executors.ranks.group import GroupExecutor
from worker.loading import Loaded, load
from worker.placements import PlacementBook
from worker.reporting import KvReport, LoadReport
from worker.service import SERVICE_NAME, EarlyServicer, WorkerServicer
from worker.step_loop import StepLoop
from worker.telemetry import RequestTelemetry, StepMetrics, tell_kernels

WATCH_S = 0.25
"""Seconds between two looks for silent gateways, late placements and a stuck engine."""
FIRST_SLICES_S = 2.0
"""Seconds in which the kvmanager says what tenants may hold; then the worker takes requests without."""
LAST_WORD_S = 1.0
"""Seconds in which gateways take what is said to them at the end."""
LINGER_S = 0.3
"""Seconds in which a worker that has drained still refuses what was placed on it, in so many words."""
EXIT_S = 3.0
"""Seconds kept of the drain limit to end what did not finish."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    engine: AsyncEngine
    servicer: WorkerServicer
    load: LoadReport
    scheduler: WorkerSchedulerLink | None
    kvmanager: WorkerKvManagerLink | None


class Worker:
    """The worker's process."""

    def __init__(
        self,
        config: WorkerConfig,
        lifecycle: Lifecycle,
        load_model: Callable[[WorkerConfig], Loaded] = load,
        tls: Tls | None = None,
    ) -> None:
        check_bind(config.host, config.insecure, has_credentials=tls is not None)
        self._config = config
        self._lifecycle = lifecycle
        self._load_model = load_model
        self._tls = tls
        self._metrics = Metrics()
        self._server = create_server(interceptors=[ErrorInterceptor(), *peers_only(tls, "gateway", OPERATOR)])
        self._early = EarlyServicer()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self._early, self._server)  # type: ignore[no-untyped-call]
        self._health: HealthControl = add_health_and_reflection(self._server, [SERVICE_NAME])
        self.port = 0
        """Port of the gRPC service, once `run` listens."""
        self.probe_port = 0
        """That of the probes."""
        self.serving = asyncio.Event()
        """Set when the worker is ready for the first time."""

    async def run(self) -> None:
        """Serve until told to stop.

        Raises:
            FatalError: It cannot start, or, as `EngineFailed`, its engine has failed or hangs: restart it.
        """
        config = self._config
        credentials = None if self._tls is None else self._tls.server(asks=True)
        self.port = bind(self._server, f"{config.host}:{config.port}", credentials=credentials)
        probes = Probes(
            config.probe_port,
            is_ready=lambda: self._health.serving,
            metrics=self._metrics,
            host=config.host,
            tls=self._tls,
        )
        await self._server.start()
        try:
            async with probes:
                self.probe_port = probes.port
                loaded = await self._load()
                if loaded is not None:
                    await self._serve(loaded)
        finally:
            await self._server.stop(LAST_WORD_S)

    async def _serve(self, loaded: Loaded) -> None:
        parts = await self._wire(loaded)
        await self._connect(parts)
        self._health.set_serving()
        self.serving.set()
        model = self._config.model_name
        _log.info("serving", address=self._address(), probe_port=self.probe_port, model=model)
        try:
            await self._until_stopped(parts)
        finally:
            parts.servicer.gateways.drop_all("stopping")
        if await parts.engine.stop(LAST_WORD_S):
            loaded.executor.close()

    async def _load(self) -> Loaded | None:
        """Load the model unless told to stop meanwhile."""
        loading = in_daemon_thread(lambda: self._load_model(self._config))
        stopping = asyncio.create_task(self._lifecycle.stopping.wait(), name="stopping")
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        return loading.result() if loading.done() else None

    async def _wire(self, loaded: Loaded) -> _Parts:
        executor, profile = loaded.executor, loaded.executor.profile
        scheduler = StepScheduler(self._engine_config(loaded))
        engine = AsyncEngine(
            lambda on_step, on_fault: StepLoop(scheduler, executor, on_step=on_step, on_fault=on_fault),
            RequestTelemetry(self._metrics, profile.model),
        )
        if isinstance(executor, GroupExecutor):
            # An idle group has to notice too: who waits for a step would wait for the next request.
            executor.watch(engine.hand_over_fault)
        engine.listen(StepMetrics(self._metrics).on_step)
        tell_kernels(self._metrics, profile)
        if loaded.device is not None:
            tell_devices(self._metrics, (loaded.device, *loaded.peers))
        facts = self._facts(loaded)
        book = PlacementBook()
        servicer = WorkerServicer(engine, facts, profile, book)
        self._early.open(servicer)
        load_report, kv_report = LoadReport(engine, book), KvReport(engine)
        scheduler_link = kvmanager_link = None
        if self._config.scheduler:
            channel = open_channel(self._tls, self._config.scheduler, "scheduler")
            scheduler_link = WorkerSchedulerLink(channel, facts, load_report)
            load_report.tell(scheduler_link)
        if self._config.kvmanager:
            channel = open_channel(self._tls, self._config.kvmanager, "kvmanager")
            kvmanager_link = WorkerKvManagerLink(channel, facts, kv_report)
            kv_report.tell(kvmanager_link)
        parts = _Parts(
            engine=engine,
            servicer=servicer,
            load=load_report,
            scheduler=scheduler_link,
            kvmanager=kvmanager_link,
        )
        self._lifecycle.on_wake(lambda _: self._wake(parts, facts))
        await engine.start()
        return parts

    def _engine_config(self, loaded: Loaded) -> EngineConfig:
        config, profile = self._config, loaded.executor.profile
        return EngineConfig(
            num_pages=loaded.pool.num_pages,
            max_context_tokens=loaded.max_context_tokens,
            vocab_size=profile.vocab_size,
            page_size=profile.page_size,
            max_sequences=config.max_sequences,
            max_step_tokens=config.max_step_tokens,
            max_prefill_tokens=config.max_prefill_tokens,
            max_waiting=config.max_waiting,
        )

    def _facts(self, loaded: Loaded) -> WorkerFacts:
        """Return what peers are told of this worker."""
        config, profile = self._config, loaded.executor.profile
        return WorkerFacts(
            name=WorkerId(config.name),
            epoch=self._lifecycle.epoch,
            build=BUILD,
            address=self._address(),
            model=profile.model,
            revision=profile.revision,
            namespace=profile.namespace,
            numerics=profile.numerics,
            capacity=Capacity(
                max_context_tokens=loaded.max_context_tokens,
                total_pages=loaded.pool.num_pages,
                page_size=profile.page_size,
                max_sequences=config.max_sequences,
            ),
            max_step_tokens=config.max_step_tokens,
            max_prefill_tokens=config.max_prefill_tokens,
        )

    async def _connect(self, parts: _Parts) -> None:
        spawn = self._lifecycle.spawn
        if parts.kvmanager is not None:
            spawn(parts.kvmanager.run(), name="kvmanager-link")
            await self._first_slices(parts.kvmanager)
        if parts.scheduler is not None:
            spawn(parts.scheduler.run(), name="scheduler-link")
        spawn(sample_loop_lag(self._metrics), name="loop-lag")
        if self._tls is not None:
            spawn(watch_expiry(self._metrics, self._tls), name="tls")
        spawn(self._watch(parts), name="watch")

    async def _first_slices(self, kvmanager: WorkerKvManagerLink) -> None:
        """Wait for slices before anything is placed here; without a kvmanager not for long."""
        try:
            async with asyncio.timeout(FIRST_SLICES_S):
                await kvmanager.has_slices.wait()
        except TimeoutError:
            _log.warning("no_slices", waited_s=FIRST_SLICES_S, effect="tenants are not bounded here yet")

    def _wake(self, parts: _Parts, facts: WorkerFacts) -> None:
        """Be another boot: peers have given this one up while it did not run."""
        facts.epoch = self._lifecycle.epoch
        parts.servicer.gateways.drop_all("woke_up")
        for link in (parts.scheduler, parts.kvmanager):
            if link is not None:
                link.restart()

    async def _watch(self, parts: _Parts) -> None:
        while True:
            await next_tick(WATCH_S)
            now = time.monotonic()
            parts.servicer.gateways.drop_silent(now)
            parts.load.expire_placements(now)
            stuck_s = parts.engine.stuck_s()
            is_ending = self._lifecycle.stopping.is_set() or parts.load.is_draining
            is_ready = stuck_s <= self._config.stuck_after_s and not is_ending
            if is_ready != self._health.serving:
                _log.warning("readiness_changed", ready=is_ready, stuck_s=round(stuck_s, 1))
                self._health.set_serving() if is_ready else self._health.set_not_serving()
            if stuck_s > self._config.restart_after_s:
                parts.engine.end_all(WorkerLost("the worker's engine hangs"))
                parts.servicer.gateways.drop_all("stuck")
                await self._server.stop(LAST_WORD_S)
                raise EngineFailed(
                    f"no step finished for {stuck_s:.0f} s: the engine hangs; restart the worker"
                )

    async def _until_stopped(self, parts: _Parts) -> None:
        stopping = asyncio.create_task(self._lifecycle.stopping.wait(), name="stopping")
        await asyncio.wait((stopping, parts.engine.fault), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            stopping.cancel()
        if parts.engine.fault.done():
            self._health.set_not_serving()
            error = parts.engine.fault.result()
            _log.error("engine_failed", exc_info=error)
            raise EngineFailed(
                f"the engine failed ({type(error).__name__}: {error}); restart the worker"
            ) from error
        await self._drain(parts)

    async def _drain(self, parts: _Parts) -> None:
        """Refuse new requests, let live ones finish, and say to the rest why they ended."""
        self._health.set_not_serving()
        parts.load.drain()
        limit_s = max(0.0, self._lifecycle.drain_limit_s - EXIT_S)
        try:
            async with asyncio.timeout(limit_s):
                await parts.engine.wait_idle()
                await asyncio.sleep(LINGER_S)
        except TimeoutError:
            _log.warning("drain_cut_short", live=len(parts.engine.live))
            parts.engine.end_all(Draining("the worker is shutting down"))

    def _address(self) -> str:
        return self._config.advertise or f"{self._config.host}:{self.port}"
