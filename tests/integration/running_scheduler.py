"""A scheduler that serves inside the test's process."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from protos.scheduler.v1 import scheduler_pb2_grpc
from scheduler.__main__ import link_kvmanager
from scheduler.config import SchedulerConfig
from scheduler.core.fifo import FifoPolicy
from scheduler.core.policy import QueuePolicy
from scheduler.dispatcher import Dispatcher
from scheduler.metrics import SchedulerMetrics
from scheduler.service import SchedulerService
from services.chassis.errors import ErrorInterceptor
from services.chassis.grpc import bind, create_channel, create_server
from services.chassis.metrics import Metrics
from services.domain.ids import Epoch
from tests.fakes.scheduler_peers import FakeGateway


@dataclass
class Running:
    """A scheduler that serves, and a channel to it."""

    dispatcher: Dispatcher
    metrics: Metrics
    channel: grpc.aio.Channel
    port: int


@asynccontextmanager
async def scheduler(
    *,
    epoch: int = 1,
    port: int = 0,
    kvmanager: str | None = None,
    new_policy: Callable[[], QueuePolicy] = FifoPolicy,
    **settings: Any,
) -> AsyncIterator[Running]:
    patient = SchedulerConfig(kvmanager=kvmanager, match_within_ms=500, submit_within_ms=60_000)
    config = dataclasses.replace(patient, **settings)
    metrics, rules = Metrics(), config.rules()
    dispatcher = Dispatcher(
        rules, new_policy=new_policy, epoch=Epoch(epoch), metrics=SchedulerMetrics(metrics, rules.bands)
    )
    server = create_server(interceptors=[ErrorInterceptor()])
    service = SchedulerService(dispatcher, name="scheduler", build="test")
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(service, server)
    bound = bind(server, f"127.0.0.1:{port}")
    await server.start()
    async with AsyncExitStack() as stack:
        tasks = [asyncio.create_task(dispatcher.run())]
        if kvmanager is not None:
            kv_channel = await stack.enter_async_context(create_channel(kvmanager))
            tasks.append(asyncio.create_task(link_kvmanager(config, dispatcher, kv_channel).run()))
        channel = await stack.enter_async_context(create_channel(f"127.0.0.1:{bound}"))
        try:
            yield Running(dispatcher, metrics, channel, bound)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop(0)


async def eventually(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait for a state inside this process that no message announces."""
    async with asyncio.timeout(limit_s):
        while not true():  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.005)


def placements(count: int) -> Callable[[FakeGateway], bool]:
    return lambda gateway: len(gateway.heard["placement"]) >= count
