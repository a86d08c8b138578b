"""The kvmanager behind real streams, with a real Valkey, and as a process."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvmanager.core.eviction_policy import EvictionPolicy
from kvmanager.stores.redis import RedisIndexCopy
from protos.kvmanager.v1 import kvmanager_pb2 as pb
from protos.kvmanager.v1 import kvmanager_pb2_grpc
from protos.types.v1 import types_pb2
from services.chassis.errors import from_rpc_error
from services.chassis.grpc import create_channel
from services.chassis.lifecycle import epoch
from services.chassis.redis import connect
from services.domain.block_hash import hash_blocks
from services.domain.capacity import Capacity
from services.domain.errors import InvalidField, StaleAttempt
from services.domain.ids import BlockHash, Namespace, TenantId, WorkerId
from services.domain.slices import SliceInForce, SlicesInForce
from services.rpc.worker_facts import WorkerFacts
from services.rpc.worker_kvmanager_link import WorkerKvManagerLink
from tests.fakes.kv_peers import RawWorker, Served, serving, wait_for_blocks
from tests.fakes.valkey import Valkey, eventually

BLOCKS = hash_blocks(range(16 * 64), salt=b"t")


async def test_what_a_worker_tells_is_what_a_scheduler_hears() -> None:
    async with serving(policy=EvictionPolicy(version=3, idle_ttl_s=90.0)) as served:
        worker = RawWorker(served.stub)
        welcome = (await worker.receive("welcome")).welcome
        assert welcome.peer.name == "kvmanager"
        policy = (await worker.receive("policy")).policy
        assert policy == pb.Policy(version=3, eviction_order=pb.EVICTION_ORDER_LRU, idle_ttl_ms=90_000)
        slices = (await worker.receive("slices")).slices
        assert [(one.tenant, one.max_pages, one.cap) for one in slices.slices] == [("t", 50, 100)]
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
            await worker.receive("heartbeat")
        await worker.leave()


@pytest.mark.slow
async def test_a_silent_worker_is_dropped() -> None:
    async with serving() as served:
        worker = RawWorker(served.stub)
        worker.snapshot(0, BLOCKS[:5])
        await wait_for_blocks(served, 5)
        worker.beating.cancel()

        async def dropped() -> bool:
            return not (await served.status()).workers

        await eventually(dropped)
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
        self.max_pages: dict[TenantId, int] = {}
        self.version = 0
        self.idle_ttl_s: float | None = None

    def set_slices(
        self, version: int, max_pages: dict[TenantId, int], caps: dict[TenantId, int], default_max: None
    ) -> None:
        self.version, self.max_pages = version, dict(max_pages)

    def slices(self, needs: int = 0) -> SlicesInForce:
        tenants = {
            tenant: SliceInForce(max_pages=pages, bound=pages, held=0, needs=needs)
            for tenant, pages in self.max_pages.items()
        }
        return SlicesInForce(version=self.version, tenants=tenants)

    def set_idle_ttl(self, idle_ttl_s: float | None) -> None:
        self.idle_ttl_s = idle_ttl_s

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
            max_prefill_tokens=256,
        )
        link = WorkerKvManagerLink(served.channel, facts, pool)
        running = asyncio.create_task(link.run())
        await wait_for_blocks(served, 4)
        link.stored(BLOCKS[4])
        link.removed(BLOCKS[0], by_policy=False)
        link.flush_soon({TenantId("t"): 45})

        async def told() -> bool:
            return pool.max_pages == {TenantId("t"): 50}

        await eventually(told)
        link.slices_changed(pool.slices(needs=100))

        async def true() -> bool:
            return served.manager.index.blocks_of(WorkerId("worker-0")) == set(BLOCKS[1:5])

        await eventually(true)

        async def grown() -> bool:
            return pool.max_pages == {TenantId("t"): 100}

        await eventually(grown)
        assert link.has_slices.is_set()

        async def confirmed() -> bool:
            return (await served.status()).workers[0].policy_version == EvictionPolicy().version

        await eventually(confirmed)
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
            event = json.loads(await asyncio.wait_for(process.stderr.readline(), 60))
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
            async with asyncio.timeout(60):
                while await worker.call.read() is not grpc.aio.EOF:
                    pass
                assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
