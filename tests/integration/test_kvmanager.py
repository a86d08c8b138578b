"""The kvmanager behind real streams, with a real Valkey, and as a process."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvmanager.__main__ import restore
from kvmanager.core.eviction_policy import EvictionPolicy
from kvmanager.manager import Manager
from kvmanager.metrics import IndexMetrics
from kvmanager.service import KvManagerService
from kvmanager.stores.redis import RedisIndexCopy
from protos.kvmanager.v1 import kvmanager_pb2 as pb
from protos.kvmanager.v1 import kvmanager_pb2_grpc
from protos.types.v1 import types_pb2
from services.chassis.errors import ErrorInterceptor, from_rpc_error
from services.chassis.grpc import bind, create_channel, create_server
from services.chassis.lifecycle import epoch
from services.chassis.metrics import Metrics
from services.chassis.redis import connect
from services.chassis.stream import Outbox
from services.domain.block_hash import hash_blocks
from services.domain.capacity import Capacity
from services.domain.errors import InvalidField, StaleAttempt
from services.domain.ids import PROTOCOL_VERSION, BlockHash, Epoch, Namespace, TenantId, WorkerId
from services.rpc.convert import peer_to_pb
from services.rpc.worker_facts import WorkerFacts
from services.rpc.worker_kvmanager_link import WorkerKvManagerLink
from tests.fakes.valkey import Valkey, eventually

BLOCKS = hash_blocks(range(16 * 64), salt=b"t")
TICK_S = 0.1


class Served:
    """A kvmanager on a real port inside the test's process."""

    def __init__(self, manager: Manager, channel: grpc.aio.Channel) -> None:
        self.manager = manager
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
            if message.WhichOneof("message") == "answer":
                answers.append(message.answer)
            if len(answers) == num_queries:
                break
        call.cancel()
        return answers


@asynccontextmanager
async def serving(redis_url: str | None = None) -> AsyncIterator[Served]:
    store = None if redis_url is None else connect(redis_url)
    copy = None if store is None else RedisIndexCopy(store)
    manager = Manager(
        caps={TenantId("t"): 100}, policy=EvictionPolicy(), metrics=IndexMetrics(Metrics()), copy=copy
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
    if manager.writer is not None:
        work.append(asyncio.create_task(manager.writer.run()))
    try:
        yield Served(manager, channel)
    finally:
        for task in work:
            task.cancel()
        await channel.close()
        await server.stop(0)
        if store is not None:
            await store.close()


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

    async def receive(self, kind: str) -> pb.ConnectWorkerResponse:
        """Return the next message of a kind."""
        while True:
            message: pb.ConnectWorkerResponse = await asyncio.wait_for(self.call.read(), 10)
            assert message is not grpc.aio.EOF, "the stream ended"
            if message.WhichOneof("message") == kind:
                return message

    def snapshot(self, seq: int, blocks: Sequence[BlockHash]) -> None:
        part = pb.Snapshot(seq=seq, hashes=b"".join(blocks), first=True)
        self.outbox.put_nowait(pb.ConnectWorkerRequest(snapshot=part))

    def events(self, seq: int, stored: Sequence[BlockHash] = (), raw: bytes = b"") -> None:
        events = pb.Events(seq=seq, stored=b"".join(stored) + raw)
        self.outbox.put_nowait(pb.ConnectWorkerRequest(events=events))

    def heartbeat(self) -> None:
        self.outbox.put_nowait(pb.ConnectWorkerRequest(heartbeat=types_pb2.Heartbeat()))

    async def leave(self) -> None:
        self.outbox.close()
        self.call.cancel()


async def wait_for_blocks(served: Served, num_blocks: int) -> None:
    async def holds() -> bool:
        return [one.blocks for one in (await served.status()).workers] == [num_blocks]

    await eventually(holds)


async def test_what_a_worker_tells_is_what_a_scheduler_hears() -> None:
    async with serving() as served:
        worker = RawWorker(served.stub)
        welcome = (await worker.receive("welcome")).welcome
        assert welcome.peer.name == "kvmanager"
        assert (await worker.receive("policy")).policy.eviction_order == pb.EVICTION_ORDER_LRU
        slices = (await worker.receive("slices")).slices
        assert [(one.tenant, one.max_pages) for one in slices.slices] == [("t", 50)]
        worker.snapshot(3, BLOCKS[:40])
        worker.events(4, BLOCKS[40:50])
        await wait_for_blocks(served, 50)
        (answer,) = await served.ask(BLOCKS)
        assert [(m.worker, m.epoch, m.tokens) for m in answer.matches] == [("worker-0", 5, 800)]
        assert answer.first_miss_token == 800
        assert answer.miss_reason == types_pb2.MISS_REASON_NEVER_SEEN
        status = await served.status()
        assert (status.queries_total, status.hits_total, status.workers[0].event_seq) == (1, 1, 4)
        await worker.leave()


async def test_answers_come_in_the_order_of_the_questions() -> None:
    async with serving() as served:
        worker = RawWorker(served.stub)
        worker.snapshot(0, BLOCKS)
        await wait_for_blocks(served, 64)
        answers = await served.ask(BLOCKS, num_queries=60)
        assert [answer.id for answer in answers] == list(range(60))
        assert [answer.matches[0].tokens for answer in answers] == [16 * n for n in range(5, 65)]
        await worker.leave()


@pytest.mark.failure("B155")
async def test_a_gap_and_a_broken_message_ask_for_a_snapshot_and_the_stream_goes_on() -> None:
    async with serving() as served:
        worker = RawWorker(served.stub)
        worker.snapshot(0, BLOCKS[:1])
        worker.events(2, BLOCKS[1:2])
        await worker.receive("need_snapshot")
        worker.snapshot(2, BLOCKS[:3])
        worker.events(3, raw=b"no multiple of sixteen")
        await worker.receive("need_snapshot")
        worker.snapshot(3, BLOCKS[:5])
        await wait_for_blocks(served, 5)
        await worker.leave()


async def test_the_kvmanager_sends_signs_of_life() -> None:
    async with serving() as served:
        worker = RawWorker(served.stub)
        for _ in range(2):
            worker.heartbeat()
            await worker.receive("heartbeat")
        await worker.leave()


@pytest.mark.slow
async def test_a_silent_worker_is_dropped_within_4_s() -> None:
    async with serving() as served:
        worker = RawWorker(served.stub)
        worker.snapshot(0, BLOCKS[:5])
        await wait_for_blocks(served, 5)
        since = time.monotonic()

        async def dropped() -> bool:
            return not (await served.status()).workers

        await eventually(dropped)
        assert time.monotonic() - since < 4.5
        await worker.leave()


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda served: RawWorker(served.stub, boot=4), StaleAttempt),
        (lambda served: RawWorker(served.stub, name="worker-1", version=99), InvalidField),
    ],
    ids=["an older boot", "another protocol"],
)
async def test_a_worker_that_does_not_belong_here_is_refused(
    make: Callable[[Served], RawWorker], error: type[Exception]
) -> None:
    async with serving() as served:
        worker = RawWorker(served.stub, boot=5)
        await worker.receive("welcome")
        stranger = make(served)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stranger.receive("slices")
        assert isinstance(from_rpc_error(caught.value), error)
        await worker.leave()


@pytest.fixture
async def valkey(tmp_path: Path) -> AsyncIterator[Valkey]:
    server = Valkey(tmp_path)
    await server.start()
    yield server
    await server.stop()


async def test_after_a_restart_hits_come_from_the_copy_with_snapshots_withheld(valkey: Valkey) -> None:
    async with serving(valkey.url) as first:
        worker = RawWorker(first.stub)
        worker.snapshot(0, BLOCKS[:40])
        worker.events(1, BLOCKS[40:50])
        await wait_for_blocks(first, 50)

        async def copied() -> bool:
            assert first.manager.writer is not None
            return first.manager.writer.is_behind_since is None

        await eventually(copied)
        await worker.leave()
    async with serving(valkey.url) as second:
        (answer,) = await second.ask(BLOCKS)
        assert [(m.worker, m.epoch, m.tokens) for m in answer.matches] == [("worker-0", 5, 800)]
        worker = RawWorker(second.stub)
        await worker.receive("welcome")
        worker.events(9, BLOCKS[50:51])
        await wait_for_blocks(second, 51)
        assert (await second.ask(BLOCKS))[0].matches[0].tokens == 816
        assert (await second.status()).workers[0].from_copy
        worker.snapshot(10, BLOCKS[:2])
        await wait_for_blocks(second, 2)
        assert not (await second.status()).workers[0].from_copy
        await worker.leave()


@pytest.mark.failure("B152")
async def test_without_redis_the_index_is_merely_not_copied(valkey: Valkey) -> None:
    await valkey.stop()
    async with serving(valkey.url) as served:
        worker = RawWorker(served.stub)
        worker.snapshot(0, BLOCKS[:5])
        await wait_for_blocks(served, 5)
        assert (await served.ask(BLOCKS))[0].matches[0].tokens == 80

        async def failed() -> bool:
            assert served.manager.writer is not None
            return served.manager.writer.num_failures > 0

        await eventually(failed)
        await valkey.start()

        async def copied() -> bool:
            assert served.manager.writer is not None
            return served.manager.writer.is_behind_since is None

        await eventually(copied)
        store = connect(valkey.url)
        assert [len(one.blocks) for one in await RedisIndexCopy(store).load()] == [5]
        await store.close()
        await worker.leave()


class Pool:
    """A worker's pool, as far as the kvmanager has a say in it."""

    def __init__(self) -> None:
        self.blocks: list[BlockHash] = []
        self.slices: dict[TenantId, int] = {}

    def set_slices(self, max_pages: dict[TenantId, int], default_max: int | None) -> None:
        self.slices = dict(max_pages)

    def snapshot(self, reply: Callable[[Sequence[BlockHash]], None]) -> None:
        reply(self.blocks)


async def test_a_real_workers_link_keeps_the_index_true() -> None:
    async with serving() as served:
        pool = Pool()
        pool.blocks = list(BLOCKS[:4])
        facts = WorkerFacts(
            name=WorkerId("worker-0"),
            epoch=epoch(),
            build="test",
            address="127.0.0.1:1",
            model="m",
            revision="r",
            namespace=Namespace("n"),
            numerics="x",
            capacity=Capacity(max_context_tokens=2048, total_pages=1000, page_size=16, max_sequences=8),
            max_step_tokens=512,
        )
        link = WorkerKvManagerLink(served.channel, facts, pool)
        running = asyncio.create_task(link.run())
        await wait_for_blocks(served, 4)
        link.stored(BLOCKS[4])
        link.removed(BLOCKS[0])
        link.flush_soon({TenantId("t"): 45}, [TenantId("t")])

        async def true() -> bool:
            return served.manager.index.blocks_of(WorkerId("worker-0")) == set(BLOCKS[1:5])

        await eventually(true)

        async def grown() -> bool:
            return pool.slices == {TenantId("t"): 100}

        await eventually(grown)
        running.cancel()


async def test_the_process_serves_answers_probes_and_drains(valkey: Valkey) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvmanager", "--port", "0", "--probe-port", "0", "--redis-url", valkey.url),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        event: dict[str, object] = {}
        while event.get("event") != "serving":
            event = json.loads(await asyncio.wait_for(process.stderr.readline(), 20))
        async with create_channel(f"127.0.0.1:{event['port']}") as channel:
            stub = kvmanager_pb2_grpc.KvManagerServiceStub(channel)
            health = health_pb2_grpc.HealthStub(channel)
            checked = await health.Check(health_pb2.HealthCheckRequest())
            assert checked.status == health_pb2.HealthCheckResponse.SERVING
            worker = RawWorker(stub)
            await worker.receive("welcome")
            status = await stub.GetStatus(pb.GetStatusRequest())
            assert [one.worker for one in status.workers] == ["worker-0"]
            reader, writer = await asyncio.open_connection("127.0.0.1", int(str(event["probe_port"])))
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert b"quire_prefix_index_blocks" in await reader.read()
            writer.close()
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                while await worker.call.read() is not grpc.aio.EOF:
                    pass
                assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
