"""The worker's links to scheduler and kvmanager, against scripted servers over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import structlog.testing

from protos.kvmanager.v1 import kvmanager_pb2 as kv
from protos.kvmanager.v1 import kvmanager_pb2_grpc
from protos.scheduler.v1 import scheduler_pb2 as sched
from protos.scheduler.v1 import scheduler_pb2_grpc
from protos.types.v1 import types_pb2
from services.chassis.grpc import bind, create_server, is_serving
from services.chassis.stream import Outbox, serve_duplex
from services.domain.block_hash import DIGEST_BYTES, hash_blocks
from services.domain.ids import BlockHash, Epoch
from services.rpc import convert
from services.rpc.worker_kvmanager_link import SNAPSHOT_PART_BLOCKS, snapshot_parts
from tests.integration.worker_bench import HandGateway, running_worker


class Script:
    """One scripted server: keeps what the worker says, on every stream anew."""

    def __init__(self) -> None:
        self.port = 0
        self.term = 1
        self.epoch = Epoch(77)
        self.outbox: Outbox | None = None
        self.hellos: list = []
        self.messages: list = []
        """Of the stream of now."""
        self._changed = asyncio.Event()
        self._server = None

    async def start(self) -> None:
        self._server = create_server()
        self._add(self._server)
        self.port = bind(self._server, f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def wait_for(self, what: Callable[[], object], limit_s: float = 10.0) -> None:
        async with asyncio.timeout(limit_s):
            while not what():
                self._changed.clear()
                await self._changed.wait()

    async def ConnectWorker(self, requests: AsyncIterator, context: object) -> None:
        self.outbox, self.messages = Outbox(), []
        for message in self._welcome(convert.peer_to_pb("script", self.epoch, "test")):
            self.outbox.put_nowait(message)
        await serve_duplex(context, requests, self.outbox, self._take, self._heartbeat)

    def _take(self, message: object) -> None:
        if message.WhichOneof("message") == "hello":
            self.hellos.append(message.hello)
        else:
            self.messages.append(message)
        self._changed.set()

    def send(self, **message: object) -> None:
        self.outbox.put_nowait(self._response(**message))

    def _heartbeat(self) -> object:
        return self._response(heartbeat=types_pb2.Heartbeat())


class ScriptedScheduler(Script, scheduler_pb2_grpc.SchedulerServiceServicer):
    _response = sched.ConnectWorkerResponse
    submit_within_ms = 2000

    def _add(self, server: object) -> None:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, server)

    def _welcome(self, peer: types_pb2.Peer) -> list[sched.ConnectWorkerResponse]:
        welcome = sched.WorkerWelcome(peer=peer, term=self.term, submit_within_ms=self.submit_within_ms)
        return [self._response(welcome=welcome)]

    @property
    def reports(self) -> list[sched.Report]:
        return [message.report for message in self.messages if message.HasField("report")]

    @property
    def last(self) -> sched.Report:
        return self.reports[-1] if self.reports else sched.Report()

    def gathered(self, field: str) -> list[str]:
        return [
            (one if field == "started" else one.key).request_id
            for report in self.reports
            for one in getattr(report, field)
        ]


class ScriptedKvManager(Script, kvmanager_pb2_grpc.KvManagerServiceServicer):
    _response = kv.ConnectWorkerResponse
    version = 0

    def _add(self, server: object) -> None:
        kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(self, server)

    def _welcome(self, peer: types_pb2.Peer) -> list[kv.ConnectWorkerResponse]:
        self.version += 1
        slices = kv.Slices(version=self.version)
        return [self._response(welcome=kv.WorkerWelcome(peer=peer)), self._response(slices=slices)]

    def give(self, tenant: str, pages: int, cap: int) -> None:
        """Push one tenant's slice."""
        self.version += 1
        one = kv.Slice(tenant=tenant, max_pages=pages, cap=cap)
        self.send(slices=kv.Slices(version=self.version, slices=[one]))

    @property
    def in_force(self) -> list[kv.SlicesInForce]:
        return [message.slices for message in self.messages if message.HasField("slices")]

    @property
    def snapshots(self) -> list[kv.Snapshot]:
        return [message.snapshot for message in self.messages if message.HasField("snapshot")]

    @property
    def events(self) -> list[kv.Events]:
        return [message.events for message in self.messages if message.HasField("events")]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    await script.start()
    try:
        yield f"127.0.0.1:{script.port}"
    finally:
        await script.stop()


def placed(scheduler: ScriptedScheduler, seq: int, **fields: object) -> dict[str, object]:
    return {"term": scheduler.term, "seq": seq, **fields}


async def test_grants_are_counted_from_the_hello_and_follow_the_requests() -> None:
    scheduler = ScriptedScheduler()
    async with scripted(scheduler) as address, running_worker(scheduler=address, step_ms=5) as worker:
        await scheduler.wait_for(lambda: scheduler.last.granted)
        hello, window = scheduler.hellos[0], scheduler.last.granted
        assert (hello.model, hello.total_pages, hello.page_size) == ("sim", 256, 16)
        assert hello.address == f"127.0.0.1:{worker.worker.port}"
        assert not hello.live
        gateway = HandGateway(worker)
        await gateway.connect()
        for seq in range(1, 6):
            scheduler.send(placed=sched.Placed(highest_seq=seq))
            await gateway.wait_end(await gateway.submit(**placed(scheduler, seq)))
        ids = [f"gateway-0-1000-{handle}" for handle in range(1, 6)]
        await scheduler.wait_for(lambda: scheduler.gathered("ended") == ids)
        assert scheduler.gathered("started") == ids
        await scheduler.wait_for(lambda: scheduler.last.granted == window + 5)
        assert scheduler.last.placements_seen == 5
        (use,) = [report.tenant_use for report in scheduler.reports if report.tenant_use][-1]
        assert (use.tenant, use.uncached_tokens, use.output_tokens) == ("local", 100, 50)
        assert [report.seq for report in scheduler.reports] == list(range(1, len(scheduler.reports) + 1))


@pytest.mark.failure("B011")
async def test_a_placement_that_nobody_submits_gives_its_credit_back() -> None:
    scheduler = ScriptedScheduler()
    scheduler.submit_within_ms = 100
    async with scripted(scheduler) as address, running_worker(scheduler=address) as worker:
        await scheduler.wait_for(lambda: scheduler.last.granted)
        window = scheduler.last.granted
        scheduler.send(placed=sched.Placed(highest_seq=2))
        await scheduler.wait_for(lambda: scheduler.last.granted == window + 2)
        assert scheduler.last.placements_seen == 2
        scheduler.send(placed=sched.Placed(highest_seq=3, abandoned=[3]))
        await scheduler.wait_for(lambda: scheduler.last.granted == window + 3)
        gateway = HandGateway(worker)
        await gateway.connect()
        for seq in (2, 3):
            late = await gateway.wait_end(await gateway.submit(**placed(scheduler, seq)))
            assert late.refused.reason == "STALE_ATTEMPT"
        bad = await gateway.wait_end(await gateway.submit(tenant="", **placed(scheduler, 4)))
        assert bad.refused.reason == "INVALID_FIELD"
        await scheduler.wait_for(lambda: scheduler.last.granted == window + 4)
        assert scheduler.last.placements_seen == 4


async def test_a_scheduler_of_an_old_term_is_not_obeyed() -> None:
    scheduler = ScriptedScheduler()
    scheduler.term = 5
    async with scripted(scheduler) as address, running_worker(scheduler=address) as worker:
        await scheduler.wait_for(lambda: scheduler.last.granted)
        gateway = HandGateway(worker)
        await gateway.connect()
        old = await gateway.wait_end(await gateway.submit(term=4, seq=1))
        assert old.refused.reason == "STALE_ATTEMPT"
        scheduler.term = 4
        await scheduler.stop()
        await scheduler.start()
        await scheduler.wait_for(lambda: len(scheduler.hellos) > 3)
        scheduler.send(drain=sched.Drain())
        await gateway.wait_end(await gateway.submit(term=5, seq=1))
        assert gateway.num_tokens(2) == 10
        assert not (await worker.status()).draining


async def test_serving_goes_on_without_a_scheduler_and_the_hello_tells_what_is_live() -> None:
    scheduler = ScriptedScheduler()
    async with scripted(scheduler) as address, running_worker(scheduler=address, step_ms=5) as worker:
        await scheduler.wait_for(lambda: scheduler.last.granted)
        gateway = HandGateway(worker)
        await gateway.connect()
        handle = await gateway.submit(max_output=1900, **placed(scheduler, 1))
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > 0)
        await scheduler.stop()
        so_far = gateway.num_tokens(handle)
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > so_far)
        scheduler.term = 2
        await scheduler.start()
        await scheduler.wait_for(lambda: len(scheduler.hellos) == 2)
        (live,) = scheduler.hellos[1].live
        assert live.request_id == f"gateway-0-1000-{handle}"
        await scheduler.wait_for(lambda: scheduler.last.granted)
        window = scheduler.last.granted
        second = await gateway.submit(**placed(scheduler, 1))
        await gateway.wait_end(second)
        await scheduler.wait_for(lambda: scheduler.last.placements_seen == 1)
        await scheduler.wait_for(lambda: scheduler.last.granted == window + 1)
        await gateway.drop()
        gateway.worker_epoch = 0
        await gateway.connect()


async def test_drain_by_the_scheduler_refuses_new_and_finishes_old_requests() -> None:
    scheduler = ScriptedScheduler()
    async with scripted(scheduler) as address, running_worker(scheduler=address, step_ms=5) as worker:
        await scheduler.wait_for(lambda: scheduler.last.granted)
        gateway = HandGateway(worker)
        await gateway.connect()
        handle = await gateway.submit(max_output=60, **placed(scheduler, 1))
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > 0)
        scheduler.send(drain=sched.Drain())
        await scheduler.wait_for(lambda: scheduler.last.draining)
        async with asyncio.timeout(5):
            while await is_serving(worker.channel):  # noqa: ASYNC110 - it is another process, as it were
                await asyncio.sleep(0.05)
        refused = await gateway.wait_end(await gateway.submit(**placed(scheduler, 2)))
        assert refused.refused.reason == "DRAINING"
        await gateway.wait_end(handle)
        assert gateway.num_tokens(handle) == 60


def split_hashes(joined: bytes) -> set[bytes]:
    return {joined[i : i + DIGEST_BYTES] for i in range(0, len(joined), DIGEST_BYTES)}


async def test_a_new_kvmanager_gets_a_snapshot_and_then_numbered_events() -> None:
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        assert (manager.snapshots[0].seq, manager.snapshots[0].hashes) == (0, b"")
        gateway = HandGateway(worker)
        await gateway.connect()
        prompt = list(range(40))
        await gateway.wait_end(await gateway.submit(prompt_ids=prompt, max_output=1))
        blocks = set(hash_blocks(prompt, salt=b"salt"))
        await manager.wait_for(lambda: split_hashes(b"".join(e.stored for e in manager.events)) >= blocks)
        await manager.wait_for(lambda: manager.events[-1].tenant_pages.get("local") == 0)
        assert [e.seq for e in manager.events] == list(range(1, len(manager.events) + 1))
        manager.send(need_snapshot=kv.NeedSnapshot())
        await manager.wait_for(lambda: len(manager.snapshots) == 2)
        assert split_hashes(manager.snapshots[1].hashes) == blocks
        assert manager.snapshots[1].seq == manager.events[-1].seq


@pytest.mark.failure("B155")
async def test_after_a_break_events_go_on_by_number_and_a_new_boot_gets_everything() -> None:
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        gateway = HandGateway(worker)
        await gateway.connect()
        await gateway.wait_end(await gateway.submit(num_prompt=33, max_output=1))
        await manager.wait_for(lambda: any(e.stored for e in manager.events))
        await manager.stop()
        second = list(range(100, 140))
        await gateway.wait_end(await gateway.submit(prompt_ids=second, max_output=1))
        await manager.start()
        blocks = set(hash_blocks(second, salt=b"salt"))
        await manager.wait_for(lambda: split_hashes(b"".join(e.stored for e in manager.events)) >= blocks)
        assert not manager.snapshots
        assert [e.seq for e in manager.events] == list(range(1, len(manager.events) + 1))
        await manager.stop()
        manager.epoch = Epoch(78)
        await manager.start()
        await manager.wait_for(lambda: manager.snapshots)
        assert split_hashes(manager.snapshots[0].hashes) >= blocks


async def test_slices_bound_what_a_tenant_may_hold_and_outlive_the_kvmanager() -> None:
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        manager.give("small", 2, cap=4)
        await manager.wait_for(lambda: manager.in_force and manager.in_force[-1].version == manager.version)
        await manager.stop()
        gateway = HandGateway(worker)
        await gateway.connect()
        over = await gateway.wait_end(await gateway.submit(num_prompt=60, tenant="small"))
        assert over.refused.quota == "tenant/kv_pages"
        await gateway.wait_end(await gateway.submit(num_prompt=60, tenant="other"))
        assert gateway.num_tokens(2) == 10
        await manager.start()
        await manager.wait_for(lambda: len(manager.hellos) == 2)
        (kept,) = manager.hellos[1].slices.tenants
        assert (kept.tenant, kept.max_pages, kept.bound) == ("small", 2, 2)


async def test_a_request_waits_for_a_larger_slice_and_what_it_needs_is_told_with_numbers() -> None:
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        manager.give("small", 2, cap=8)
        gateway = HandGateway(worker)
        await gateway.connect()
        handle = await gateway.submit(num_prompt=60, tenant="small")
        # The slice may be told in force before the request, so before any tenant, arrived.
        await manager.wait_for(
            lambda: manager.in_force and any(tenant.needs for tenant in manager.in_force[-1].tenants)
        )
        said = manager.in_force[-1]
        assert (said.version, said.tenants[0].max_pages, said.tenants[0].needs) == (manager.version, 2, 5)
        manager.give("small", 5, cap=8)
        await gateway.wait_end(handle)
        assert gateway.num_tokens(handle) == 10
        await manager.wait_for(lambda: manager.in_force[-1].version == manager.version)
        assert manager.in_force[-1].tenants[0].needs == 0


async def test_cached_blocks_go_when_nobody_used_them_for_the_time_that_the_policy_gives() -> None:
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        gateway = HandGateway(worker)
        await gateway.connect()
        await gateway.wait_end(await gateway.submit(prompt_ids=list(range(40)), max_output=1))
        blocks = hash_blocks(range(40), salt=b"salt")
        await manager.wait_for(
            lambda: set(blocks) <= split_hashes(b"".join(e.stored for e in manager.events))
        )
        policy = kv.Policy(version=2, eviction_order=kv.EVICTION_ORDER_LRU, idle_ttl_ms=50)
        manager.send(policy=policy)
        await manager.wait_for(lambda: any(e.removed for e in manager.events))
        (gone,) = [e for e in manager.events if e.removed]
        assert gone.removal_reason == kv.REMOVAL_REASON_POLICY
        assert split_hashes(gone.removed) == set(blocks), "the deepest first, so no hole is ever told"
        assert gone.removed == b"".join(reversed(blocks))


async def test_pages_are_given_up_in_the_order_of_the_policy_least_recently_used_first() -> None:
    """Three prompts of 4 blocks fill 14 pages; the first is used again, then a fourth needs room."""
    prompts = [[100 * number + token for token in range(65)] for number in range(4)]
    manager = ScriptedKvManager()
    async with scripted(manager) as address, running_worker(kvmanager=address, num_pages=14) as worker:
        await manager.wait_for(lambda: manager.snapshots)
        manager.send(policy=kv.Policy(version=5, eviction_order=kv.EVICTION_ORDER_LRU))
        await manager.wait_for(lambda: any(message.policy.version == 5 for message in manager.messages))
        gateway = HandGateway(worker)
        await gateway.connect()
        for number in (0, 1, 2, 0, 3):
            await gateway.wait_end(await gateway.submit(prompt_ids=prompts[number], max_output=1))
        await manager.wait_for(lambda: any(e.removed for e in manager.events))
        second = hash_blocks(prompts[1], salt=b"salt")
        gone = b"".join(e.removed for e in manager.events)
        assert {e.removal_reason for e in manager.events if e.removed} == {kv.REMOVAL_REASON_SPACE}
        assert gone == b"".join(reversed(second))[: len(gone)], "of the second prompt, its end first"


async def test_a_policy_that_a_worker_cannot_follow_is_refused_in_so_many_words() -> None:
    manager = ScriptedKvManager()
    with structlog.testing.capture_logs() as lines:
        async with scripted(manager) as address, running_worker(kvmanager=address):
            await manager.wait_for(lambda: manager.snapshots)
            for version, order in ((1, kv.EVICTION_ORDER_LRU), (2, 7)):
                manager.send(policy=kv.Policy(version=version, eviction_order=order))
            manager.send(need_snapshot=kv.NeedSnapshot())
            await manager.wait_for(lambda: len(manager.snapshots) == 2)
    said = {line["event"]: line["version"] for line in lines if line["event"].startswith("eviction_policy")}
    assert said == {"eviction_policy_followed": 1, "eviction_policy_refused": 2}
    answers = [message.policy for message in manager.messages if message.HasField("policy")]
    assert [(answer.version, bool(answer.refusal)) for answer in answers] == [(1, False), (2, True)]
    assert "eviction order 7" in answers[1].refusal


def test_a_snapshot_is_cut_into_parts_of_a_mebibyte() -> None:
    blocks = [
        BlockHash(number.to_bytes(DIGEST_BYTES, "big")) for number in range(SNAPSHOT_PART_BLOCKS * 2 + 1)
    ]
    parts = list(snapshot_parts(blocks, 9))
    assert [(part.first, part.more, part.seq) for part in parts] == [
        (True, True, 9),
        (False, True, 9),
        (False, False, 9),
    ]
    assert max(len(part.hashes) for part in parts) == 1 << 20
    assert b"".join(part.hashes for part in parts) == b"".join(blocks)
