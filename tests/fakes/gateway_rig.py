"""A whole gateway in the test's process, over real gRPC, between a fake scheduler and fake workers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from gateway.core.auth import LOCAL, LOCAL_TENANT
from gateway.core.directory import TenantDirectory
from gateway.core.keys import ApiKey, KeyScope, digest_key, short_id
from gateway.generate import GenerateSettings
from gateway.service import GatewayService
from gateway.stores.quota import QuotaStore, ScopeUse
from gateway.stores.tenants import TenantLog
from gateway.wiring import Parts, build_parts
from protos.gateway.v1 import gateway_pb2 as pb
from protos.gateway.v1 import gateway_pb2_grpc
from protos.scheduler.v1 import scheduler_pb2
from services.chassis.errors import ErrorInterceptor, from_rpc_error
from services.chassis.grpc import bind, create_channel, create_server
from services.chassis.metrics import Metrics
from services.domain.errors import ServeError
from services.domain.generation import RequestClass
from services.domain.ids import Epoch, TenantId
from services.domain.limits import Account, Limits, Rate
from services.domain.tenant import Tenant
from services.domain.tenant_book import TenantBook
from tests.fakes.byte_tokenizer import byte_model
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.scheduler_server import FakeScheduler
from tests.fakes.tenants_memory import MemoryTenantLog
from tests.fakes.worker_server import FakeWorker

SERVER_KEY = b"server key of the rig"
ACME_CONCURRENCY = 64
ACME_TOKENS = 1_000_000
"""A minute."""
ACME = Tenant(
    id=TenantId("acme"),
    limits=Limits(max_concurrency=ACME_CONCURRENCY, tokens_per_minute=Rate(per_minute=ACME_TOKENS)),
)
TENANTS = (LOCAL_TENANT, ACME)
"""All of the rig."""
ACME_DIGEST = digest_key(SERVER_KEY, "acme-key")
ADMIN_KEY = "the rig's admin key"
ADMIN_DIGEST = digest_key(SERVER_KEY, ADMIN_KEY)
ADMIN = frozenset({KeyScope.ADMIN})
ACME_KEY = (("authorization", "Bearer acme-key"),)


class TaskHost:
    """Runs background tasks in a group, under one epoch."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.epoch = Epoch(time.time_ns() // 1000)
        self.tasks: set[asyncio.Task[None]] = set()
        self._group = group

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> object:
        task = self._group.create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


def account_of(tenant: Tenant) -> Account:
    """Return what a request of a tenant without a key counts against."""
    return TenantBook([tenant]).account(tenant.id, request_class=RequestClass.SHORT, model="tiny")


async def use_by(quota: QuotaStore, tenant: Tenant) -> ScopeUse:
    """Return what a tenant's own scope has in use."""
    return (await quota.use(account_of(tenant)))[0]


@dataclass
class Rig:
    """Everything of one test."""

    parts: Parts
    scheduler: FakeScheduler
    workers: list[FakeWorker]
    quota: QuotaStore
    metrics: Metrics
    port: int
    server: grpc.aio.Server
    channel: grpc.aio.Channel

    @property
    def worker(self) -> FakeWorker:
        return self.workers[0]

    @property
    def stub(self) -> gateway_pb2_grpc.GenerateServiceStub:
        return gateway_pb2_grpc.GenerateServiceStub(self.channel)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def until(self, holds: Callable[[], object], limit_s: float = 60.0) -> None:
        """Wait for a state."""
        async with asyncio.timeout(limit_s):
            while not holds():  # noqa: ASYNC110 (any state, of any object)
                await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """Wait until nothing is live and everything is settled."""
        async with asyncio.timeout(60):
            await self.parts.table.emptied()
            await self.parts.settler.drained()


@asynccontextmanager
async def fake_peers(
    *, num_workers: int, max_context_tokens: int, total_pages: int
) -> AsyncIterator[tuple[FakeScheduler, list[FakeWorker]]]:
    """Start a fake scheduler and the fake workers of its one model."""
    model = scheduler_pb2.ModelState(
        name="tiny",
        revision="r1",
        max_context_tokens=max_context_tokens,
        num_workers=num_workers,
        max_pages=total_pages,
        page_size=16,
        max_sequences=32,
    )
    scheduler = FakeScheduler(model)
    workers = [FakeWorker(f"worker-{n}") for n in range(num_workers)]
    scheduler.workers = list(workers)
    for worker in workers:
        await worker.start()
    await scheduler.start()
    try:
        yield scheduler, workers
    finally:
        await scheduler.stop()
        for worker in workers:
            await worker.stop()


def directory() -> TenantDirectory:
    """Return the rig's tenants and their keys."""
    return TenantDirectory(
        TENANTS,
        [
            ApiKey(id=short_id(ACME_DIGEST), tenant=ACME.id, digest=ACME_DIGEST),
            ApiKey(id=short_id(ADMIN_DIGEST), tenant=LOCAL, digest=ADMIN_DIGEST, scopes=ADMIN),
        ],
    )


@asynccontextmanager
async def serving_door(parts: Parts) -> AsyncIterator[tuple[int, grpc.aio.Server, grpc.aio.Channel]]:
    """Serve a gateway over gRPC on a port of its own; also give a channel to it."""
    server = create_server(interceptors=[ErrorInterceptor()])
    service = GatewayService(parts.generate, parts.queries, parts.auth, parts.metrics)
    gateway_pb2_grpc.add_GenerateServiceServicer_to_server(service, server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    async with create_channel(f"127.0.0.1:{port}") as channel:
        try:
            yield port, server, channel
        finally:
            # Before the server: its calls end at once, as their caller is gone.
            await channel.close()
            await server.stop(0.1)


@asynccontextmanager
async def gateway_rig(
    *,
    num_workers: int = 1,
    quota: QuotaStore | None = None,
    tenant_log: TenantLog | None = None,
    max_live: int = 4096,
    max_unread_tokens: int = 2048,
    max_context_tokens: int = 2048,
    total_pages: int = 512,
    retry_percent: float = 10.0,
    waits: bool = True,
    scheduler_port: int | None = None,
) -> AsyncIterator[Rig]:
    """Start everything, wait until it is ready if it `waits`, and take it down again.

    Args:
        scheduler_port: Of another scheduler than the fake one, which then nobody asks.
    """
    store = MemoryQuota(time.time) if quota is None else quota
    metrics = Metrics()
    sizes = {"max_context_tokens": max_context_tokens, "total_pages": total_pages}
    async with (
        fake_peers(num_workers=num_workers, **sizes) as (scheduler, workers),
        create_channel(f"127.0.0.1:{scheduler_port or scheduler.port}") as scheduler_channel,
        asyncio.TaskGroup() as group,
    ):
        host = TaskHost(group)
        with ThreadPoolExecutor(2) as executor:
            parts = build_parts(
                host,
                name="gateway",
                scheduler_channel=scheduler_channel,
                models=[byte_model()],
                tenants=directory(),
                tenant_log=tenant_log or MemoryTenantLog(),
                server_key=SERVER_KEY,
                quota=store,
                executor=executor,
                metrics=metrics,
                max_live=max_live,
                settings=GenerateSettings(max_unread_tokens=max_unread_tokens, retry_percent=retry_percent),
            )
            try:
                async with serving_door(parts) as (port, server, channel):
                    rig = Rig(parts, scheduler, workers, store, metrics, port, server, channel)
                    await rig.until(lambda: parts.is_ready or not waits)
                    yield rig
            finally:
                for task in list(host.tasks):
                    task.cancel()


@dataclass
class Answer:
    """A stream read to its end."""

    messages: list[pb.GenerateResponse]

    def of(self, kind: str) -> list[Any]:
        return [getattr(m, kind) for m in self.messages if m.WhichOneof("event") == kind]

    def text(self, choice: int = 0) -> str:
        return "".join(delta.text for delta in self.of("delta") if delta.choice == choice)

    @property
    def receipt(self) -> pb.Receipt:
        return self.of("receipt")[0]


async def generate(rig: Rig, *, metadata: Any = None, deadline_s: float = 60, **fields: Any) -> Answer:
    """Call Generate with a prompt `hello` unless another input is given, and read to the end."""
    call = rig.stub.Generate(a_request(**fields), metadata=metadata, timeout=deadline_s)
    return Answer([message async for message in call])


def a_request(**fields: Any) -> pb.GenerateRequest:
    """Return a request to the model `tiny`."""
    if not {"prompt", "token_ids", "chat"} & set(fields):
        fields["prompt"] = "hello"
    return pb.GenerateRequest(**({"model": "tiny"} | fields))


async def failure_of(rig: Rig, **fields: Any) -> ServeError:
    """Generate, expect a status, and return it as a typed error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(rig, **fields)
    return from_rpc_error(caught.value)


async def read_to_the_end(
    stream: AsyncIterator[pb.GenerateResponse],
) -> tuple[list[pb.GenerateResponse], grpc.aio.AioRpcError]:
    """Read a stream that fails; return what came and its status."""
    rest: list[pb.GenerateResponse] = []
    try:
        async for message in stream:
            rest.append(message)
    except grpc.aio.AioRpcError as error:
        return rest, error
    raise AssertionError("the stream ended well")


async def nothing_is_held(rig: Rig) -> None:
    """Everything that a request can hold is back."""
    await rig.settled()
    await rig.until(lambda: rig.parts.workers.num_live == 0 and rig.parts.scheduler.num_waiting == 0)
    for tenant in TENANTS:
        use = await use_by(rig.quota, tenant)
        assert (use.num_leases, use.reserved_tokens) == (0, 0)
    rig.parts.observe_levels()
    assert all(num == 0 for num, _ in rig.parts.table.levels(0).values())
