"""Gateways, a scheduler and sim workers in one process over real gRPC, with faults on demand."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

import grpc

from gateway.core.auth import LOCAL, LOCAL_TENANT
from gateway.core.directory import TenantDirectory
from gateway.core.request import Caller, GenerationRequest
from gateway.generate import GenerateSettings
from gateway.wiring import Parts, build_parts
from protos.scheduler.v1 import scheduler_pb2_grpc
from scheduler.core.breaker import State
from scheduler.core.fifo import FifoPolicy
from scheduler.core.rules import Rules
from scheduler.dispatcher import Dispatcher
from scheduler.metrics import SchedulerMetrics
from scheduler.service import SchedulerService
from services.chassis.errors import ErrorInterceptor
from services.chassis.fatal import FatalError
from services.chassis.grpc import bind, create_channel, create_server
from services.chassis.lifecycle import Lifecycle
from services.chassis.metrics import Metrics
from services.domain.errors import ServeError
from services.domain.ids import Epoch, WorkerId
from tests.fakes.byte_tokenizer import VOCAB_SIZE, byte_model
from tests.fakes.gateway_rig import TaskHost
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.tenants_memory import MemoryTenantLog
from worker.app import Worker
from worker.config import ExecutorKind, WorkerConfig
from worker.executors.sim import SimConfig, SimExecutor, SimFaults
from worker.loading import Loaded
from worker.memory import PoolSize

LIMIT_S = 60.0
"""For failures only."""
NUM_PAGES = 64
TOKEN = 97
"""The only one that workers draw."""


@dataclass
class FaultFleet:
    """Everything of one test."""

    dispatcher: Dispatcher
    gateways: list[Parts]
    faults: list[SimFaults]
    scheduler_address: str
    metrics: Metrics
    """The scheduler's."""

    @property
    def alive(self) -> list[WorkerId]:
        return list(self.dispatcher.core.fleet.workers)

    def state_of(self, number: int) -> State:
        breaker = self.dispatcher.core.faults.breakers.get(WorkerId(f"worker-{number}"))
        return State.CLOSED if breaker is None else breaker.state

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for a state."""
        async with asyncio.timeout(LIMIT_S):
            while not holds():  # noqa: ASYNC110 (any state, of any object)
                await asyncio.sleep(0.005)

    async def ask(self, *ids: int, gateway: int = 0, band: str | None = None) -> ServeError | None:
        """Let a gateway generate three tokens; return how it failed."""
        request = GenerationRequest(
            model="tiny", token_ids=ids, max_output_tokens=3, ignore_eos=True, band=band
        )
        events = self.gateways[gateway].generate.run(request, Caller(tenant=LOCAL, key_id=""))
        try:
            async with asyncio.timeout(LIMIT_S), aclosing(events):
                async for _ in events:
                    pass
        except ServeError as error:
            return error
        return None


async def _work(number: int, scheduler: str, faults: SimFaults, stop: asyncio.Event) -> None:
    """Be one worker until it fails or is told to stop."""
    config = WorkerConfig(
        name=f"worker-{number}",
        model="tiny",
        executor=ExecutorKind.SIM,
        port=0,
        probe_port=0,
        scheduler=scheduler,
    )

    def load(config: WorkerConfig) -> Loaded:
        executor = SimExecutor(
            SimConfig(
                model="tiny",
                vocab_size=VOCAB_SIZE,
                max_context_tokens=256,
                page_bytes=1,
                palette=(TOKEN,),
                time_scale=0.0,
            ),
            faults,
        )
        executor.allocate(NUM_PAGES)
        return Loaded(executor, PoolSize(NUM_PAGES, "given"), 256)

    async def stopped(life: Lifecycle) -> None:
        await stop.wait()
        life.stopping.set()

    try:
        async with asyncio.TaskGroup() as group:
            life = Lifecycle(config.name, group)
            stopper = group.create_task(stopped(life))
            await Worker(config, life, load).run()
            stopper.cancel()
            life._cancel_tasks()
    except* FatalError:
        pass


@asynccontextmanager
async def fault_fleet(
    num_workers: int, rules: Rules, *, num_gateways: int = 1, retry_percent: float = 10.0
) -> AsyncIterator[FaultFleet]:
    """Start everything, wait until all workers take requests, and take it down again."""
    metrics = Metrics()
    dispatcher = Dispatcher(
        rules, new_policy=FifoPolicy, epoch=Epoch(1), metrics=SchedulerMetrics(metrics, rules.bands)
    )
    server = create_server(interceptors=[ErrorInterceptor()])
    service = SchedulerService(dispatcher, name="scheduler", build="test")
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(service, server)
    address = f"127.0.0.1:{bind(server, '127.0.0.1:0')}"
    await server.start()
    faults, stop = [SimFaults() for _ in range(num_workers)], asyncio.Event()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        placing = group.create_task(dispatcher.run())
        workers = [group.create_task(_work(n, address, one, stop)) for n, one in enumerate(faults)]
        host = TaskHost(group)
        executor = stack.enter_context(ThreadPoolExecutor(2))
        gateways = [
            _gateway(f"gateway-{n}", host, address, executor, retry_percent) for n in range(num_gateways)
        ]
        fleet = FaultFleet(dispatcher, [parts for parts, _ in gateways], faults, address, metrics)
        try:
            views = dispatcher.core.fleet.workers
            await fleet.until(lambda: sum(view.free_credits > 0 for view in views.values()) == num_workers)
            await fleet.until(lambda: all(parts.is_ready for parts in fleet.gateways))
            yield fleet
        finally:
            for one in faults:
                one.running.set()
            stop.set()
            await asyncio.wait(workers, timeout=LIMIT_S)
            for task in [*host.tasks, placing]:
                task.cancel()
            for _, channel in gateways:
                await channel.close()
            await server.stop(0)


def _gateway(
    name: str, host: TaskHost, scheduler: str, executor: ThreadPoolExecutor, retry_percent: float
) -> tuple[Parts, grpc.aio.Channel]:
    channel = create_channel(scheduler)
    parts = build_parts(
        host,
        name=name,
        scheduler_channel=channel,
        models=[byte_model()],
        tenants=TenantDirectory([LOCAL_TENANT], []),
        tenant_log=MemoryTenantLog(),
        server_key=b"the same for all gateways",
        quota=MemoryQuota(time.time),
        executor=executor,
        metrics=Metrics(),
        settings=GenerateSettings(retry_percent=retry_percent),
    )
    return parts, channel
