"""A kvmanager on a real port, and a worker that sends it only what a test says."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from kvmanager.__main__ import follow_caps, restore
from kvmanager.config import CapSources
from kvmanager.core.eviction_policy import EvictionPolicy
from kvmanager.manager import Manager
from kvmanager.metrics import IndexMetrics
from kvmanager.service import KvManagerService
from kvmanager.stores.redis import RedisIndexCopy
from kvmanager.stores.tenant_caps import PublishedCaps
from protos.kvmanager.v1 import kvmanager_pb2 as pb
from protos.kvmanager.v1 import kvmanager_pb2_grpc
from protos.types.v1 import types_pb2
from services.chassis.errors import ErrorInterceptor
from services.chassis.gather import each
from services.chassis.grpc import bind, create_channel, create_server
from services.chassis.lifecycle import epoch
from services.chassis.metrics import Metrics
from services.chassis.redis import connect
from services.chassis.stream import HEARTBEAT_S, Outbox
from services.domain.ids import PROTOCOL_VERSION, BlockHash, Epoch, TenantId
from services.rpc.convert import peer_to_pb
from tests.fakes.valkey import eventually

TICK_S = 0.1


class Served:
    """A kvmanager on a real port inside the test's process."""

    def __init__(self, manager: Manager, channel: grpc.aio.Channel, port: int) -> None:
        self.manager = manager
        self.port = port
        self.channel = channel
        self.stub = kvmanager_pb2_grpc.KvManagerServiceStub(channel)

    async def status(self) -> pb.GetStatusResponse:
        response: pb.GetStatusResponse = await self.stub.GetStatus(pb.GetStatusRequest())
        return response

    async def ask(self, hashes: Sequence[BlockHash], num_queries: int = 1) -> list[pb.MatchAnswer]:
        """Ask several times on one stream, each time for one block more; return the answers as they came."""
        outbox: Outbox[pb.MatchRequest] = Outbox()
        outbox.put_nowait(pb.MatchRequest(hello=peer_to_pb("scheduler", Epoch(1), "test")))
        for number in range(num_queries):
            asked = hashes[: len(hashes) - num_queries + 1 + number]
            query = pb.MatchQuery(id=number, hashes=b"".join(asked), tenant="t")
            outbox.put_nowait(pb.MatchRequest(query=query))
        call = self.stub.Match(outbox)
        answers: list[pb.MatchAnswer] = []
        async for message in call:
            answers += [one.answer for one in each(message) if one.HasField("answer")]
            if len(answers) == num_queries:
                break
        call.cancel()
        return answers


@asynccontextmanager
async def serving(
    redis_url: str | None = None, policy: EvictionPolicy | None = None
) -> AsyncIterator[Served]:
    store = None if redis_url is None else connect(redis_url)
    copy = None if store is None else RedisIndexCopy(store)
    sources = CapSources(file={TenantId("t"): 100}, flags={})
    manager = Manager(
        caps=sources.file,
        policy=policy or EvictionPolicy(),
        metrics=IndexMetrics(Metrics()),
        copy=copy,
        expect_workers=2,
    )
    boot = epoch()
    service = KvManagerService(manager, "kvmanager", lambda: boot, "test")
    server = create_server(interceptors=[ErrorInterceptor()])
    kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(service, server)
    port = bind(server, "127.0.0.1:0")
    if copy is not None:
        await restore(manager, copy)
    await server.start()
    channel = create_channel(f"127.0.0.1:{port}")
    work = [asyncio.create_task(_tick(manager))]
    if store is not None:
        caps = follow_caps(PublishedCaps(store), sources, manager, service)
        work.append(asyncio.create_task(caps))
    if manager.writer is not None:
        work.append(asyncio.create_task(manager.writer.run()))
    try:
        yield Served(manager, channel, port)
    finally:
        for task in work:
            task.cancel()
        await channel.close()
        await server.stop(0)
        if store is not None:
            await store.close()


async def beat(outbox: Outbox[Any], request: Callable[..., Any]) -> None:
    """Give signs of life on a stream that a slow machine takes long to test."""
    while not outbox.closed:
        await asyncio.sleep(HEARTBEAT_S)
        outbox.put_nowait(request(heartbeat=types_pb2.Heartbeat()))


async def _tick(manager: Manager) -> None:
    while True:
        manager.tick(time.monotonic())
        await asyncio.sleep(TICK_S)


class RawWorker:
    """A worker's side of the stream that sends only what a test says, snapshots included."""

    def __init__(
        self,
        stub: kvmanager_pb2_grpc.KvManagerServiceStub,
        name: str = "worker-0",
        boot: int = 5,
        version: int = PROTOCOL_VERSION,
    ) -> None:
        self.outbox: Outbox[pb.ConnectWorkerRequest] = Outbox()
        peer = types_pb2.Peer(name=name, epoch=boot, protocol_version=version, build="test")
        hello = pb.WorkerHello(peer=peer, namespace="n", total_pages=1000, page_size=16)
        self.outbox.put_nowait(pb.ConnectWorkerRequest(hello=hello))
        self.call = stub.ConnectWorker(self.outbox)
        self.beating = asyncio.create_task(beat(self.outbox, pb.ConnectWorkerRequest))

    async def receive(self, kind: str) -> pb.ConnectWorkerResponse:
        """Return the next message of a kind."""
        while True:
            message: pb.ConnectWorkerResponse = await asyncio.wait_for(self.call.read(), 60)
            assert message is not grpc.aio.EOF, "the stream ended"
            if message.WhichOneof("message") == kind:
                return message

    def snapshot(self, seq: int, blocks: Sequence[BlockHash]) -> None:
        part = pb.Snapshot(seq=seq, hashes=b"".join(blocks), first=True)
        self.outbox.put_nowait(pb.ConnectWorkerRequest(snapshot=part))

    def events(
        self,
        seq: int,
        stored: Sequence[BlockHash] = (),
        raw: bytes = b"",
        tenant_pages: Mapping[str, int] | None = None,
    ) -> None:
        events = pb.Events(seq=seq, stored=b"".join(stored) + raw, tenant_pages=tenant_pages)
        self.outbox.put_nowait(pb.ConnectWorkerRequest(events=events))

    async def leave(self) -> None:
        self.beating.cancel()
        self.outbox.close()
        self.call.cancel()


async def wait_for_blocks(served: Served, num_blocks: int) -> None:
    async def holds() -> bool:
        return [one.blocks for one in (await served.status()).workers] == [num_blocks]

    await eventually(holds)
