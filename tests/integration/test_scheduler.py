"""The scheduler over real gRPC, with gateways, workers and a kvmanager that play their parts."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from protos.kvmanager.v1 import kvmanager_pb2_grpc
from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from protos.types.v1 import types_pb2
from scheduler.__main__ import link_kvmanager
from scheduler.config import BandConfig, SchedulerConfig
from scheduler.core.fair_queue import FairPolicy
from scheduler.core.fifo import FifoPolicy
from scheduler.core.policy import QueuePolicy
from scheduler.dispatcher import Dispatcher
from scheduler.metrics import SchedulerMetrics
from scheduler.service import SchedulerService
from services.chassis.errors import ErrorInterceptor
from services.chassis.grpc import bind, create_channel, create_server
from services.chassis.metrics import Metrics
from services.domain.ids import Epoch
from services.rpc.fleet_status import queue_status
from tests.fakes.scheduler_peers import FakeGateway, FakeKvManager, FakeWorker, pb_acquire


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


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with scheduler() as one:
        yield one


async def eventually(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait for a state inside this process that no message announces."""
    async with asyncio.timeout(limit_s):
        while not true():  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.005)


def placements(count: int) -> Callable[[FakeGateway], bool]:
    return lambda gateway: len(gateway.heard["placement"]) >= count


async def test_a_request_goes_from_acquire_to_placement(running: Running) -> None:
    worker = await FakeWorker(running.channel).connect(granted=1)
    gateway = await FakeGateway(running.channel).connect()
    gateway.acquire(pb_acquire("a", cache_opt_out=True))
    await gateway.until(placements(1))
    (placement,) = gateway.heard["placement"]
    assert (placement.worker, placement.address, placement.seq, placement.term) == (
        "worker-0",
        "127.0.0.1:1",
        1,
        1,
    )
    assert placement.miss_reason == types_pb2.MISS_REASON_OPT_OUT
    await worker.until(lambda w: bool(w.heard["placed"]))
    assert worker.heard["placed"][0].highest_seq == 1
    assert gateway.heard["queued"] == []
    gateway.acquire(pb_acquire("b"))
    await gateway.until(lambda g: bool(g.heard["queued"]))
    assert gateway.heard["queued"][0].position == 1
    worker.report(granted=2, seen=1)
    await gateway.until(placements(2))
    gateway.abandon(gateway.heard["placement"][1].key, 2)
    await worker.until(lambda w: any(list(p.abandoned) == [2] for p in w.heard["placed"]))


async def test_gateways_hear_of_models_as_workers_come_and_go(running: Running) -> None:
    gateway = await FakeGateway(running.channel).connect()
    await gateway.until(lambda g: bool(g.heard["models"]))
    assert list(gateway.heard["models"][0].models) == []
    worker = await FakeWorker(running.channel).connect()
    await gateway.until(lambda g: [one.num_workers for one in g.heard["models"][-1].models] == [1])
    (model,) = gateway.heard["models"][-1].models
    assert (model.name, model.max_pages, model.page_size) == ("m", 64, 16)
    await worker.leave()
    await gateway.until(lambda g: [one.num_workers for one in g.heard["models"][-1].models] == [0])


async def test_a_bad_or_impossible_request_fails_alone(running: Running) -> None:
    await FakeWorker(running.channel).connect(granted=9)
    gateway = await FakeGateway(running.channel).connect()
    gateway.acquire(pb_acquire("bad", n=0))
    gateway.acquire(pb_acquire("huge", tokens=2000))
    gateway.acquire(pb_acquire("good"))
    await gateway.until(lambda g: len(g.heard["rejected"]) > 1 and bool(g.heard["placement"]))
    failures = {one.key.request_id: one.failure for one in gateway.heard["rejected"]}
    assert (failures["bad"].reason, failures["bad"].field) == ("INVALID_FIELD", "n")
    assert failures["huge"].metadata == {"what": "KV pages", "need": "126", "limit": "64"}


async def test_the_kvmanagers_match_decides_between_equal_workers() -> None:
    kvmanager = FakeKvManager({"worker-1": 64})
    server = create_server()
    kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(kvmanager, server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    async with scheduler(kvmanager=f"127.0.0.1:{port}") as running:
        for name in ("worker-0", "worker-1"):
            await FakeWorker(running.channel, name).connect(granted=40)
        await eventually(lambda: running.dispatcher.matching_now)
        gateway = await FakeGateway(running.channel).connect()
        hashes = [bytes([i]) * 16 for i in range(6)]
        # A loaded machine may miss the limit; then the answer is unknown and the next request asks again.
        for attempt in range(20):
            gateway.acquire(pb_acquire(f"r{attempt}", tokens=100, block_hashes=hashes, own_salt=True))
            await gateway.until(placements(attempt + 1))
            placement = gateway.heard["placement"][-1]
            if placement.miss_reason != types_pb2.MISS_REASON_UNKNOWN:
                break
        assert (placement.worker, placement.cached_tokens, placement.first_miss_token) == ("worker-1", 64, 64)
        question = kvmanager.questions[0]
        assert (question.hashes, question.namespace, question.own_salt) == (b"".join(hashes), "ns-m", True)
        kvmanager.answering = False
        gateway.acquire(pb_acquire("late", tokens=100, block_hashes=hashes))
        count = len(gateway.heard["placement"]) + 1
        await gateway.until(placements(count))
        assert gateway.heard["placement"][-1].miss_reason == types_pb2.MISS_REASON_UNKNOWN
        await server.stop(0)
        await eventually(lambda: not running.dispatcher.matching_now)
        gateway.acquire(pb_acquire("over", tokens=60, tenant="capped"))
        await gateway.until(lambda g: bool(g.heard["rejected"]))
        failure = gateway.heard["rejected"][0].failure
        assert (failure.reason, failure.quota) == ("QUOTA_EXCEEDED", "tenant/kv_pages")
        assert failure.metadata == {"what": "KV pages", "need": "5", "limit": "4"}


async def test_what_waits_survives_a_restart_in_its_order_and_is_placed_once() -> None:
    async with scheduler(epoch=1) as first:
        gateway = await FakeGateway(first.channel).connect()
        await FakeWorker(first.channel).connect()
        for i in range(200):
            gateway.acquire(pb_acquire(f"r{i}", tokens=16))
        await gateway.until(lambda g: len(g.heard["queued"]) >= 200)
        port = first.port
    async with scheduler(epoch=2, port=port) as second:
        waiting = [pb_acquire(f"r{i}", tokens=16, waited_ms=1000 - i) for i in range(200)]
        back = await FakeGateway(second.channel).connect(reversed(waiting))
        worker = FakeWorker(second.channel)
        worker.auto = True
        await worker.connect(granted=1)
        await back.until(placements(200))
        assert [p.key.request_id for p in back.heard["placement"]] == [f"r{i}" for i in range(200)]
        assert {p.term for p in back.heard["placement"]} == {2}
        assert second.dispatcher.core.num_placed == 200


async def test_a_silent_gateway_is_dropped_and_its_placements_given_back(running: Running) -> None:
    worker = await FakeWorker(running.channel).connect(granted=1)
    gateway = FakeGateway(running.channel)
    gateway.answering = False
    await gateway.connect()
    for name in "ab":
        gateway.acquire(pb_acquire(name))
    await gateway.until(lambda g: bool(g.heard["placement"]) and bool(g.heard["queued"]))
    await worker.until(lambda w: any(p.abandoned for p in w.heard["placed"]))
    await eventually(lambda: not running.dispatcher.core.room and not running.dispatcher.gateways)


async def test_a_dead_worker_is_dropped_and_its_restart_serves(running: Running) -> None:
    worker = await FakeWorker(running.channel).connect()
    gateway = await FakeGateway(running.channel).connect()
    gateway.acquire(pb_acquire("a"))
    await gateway.until(lambda g: bool(g.heard["queued"]))
    await worker.leave()
    await eventually(lambda: not running.dispatcher.core.fleet.workers)
    await FakeWorker(running.channel, epoch=2).connect(granted=1)
    await gateway.until(placements(1))
    assert gateway.heard["placement"][0].epoch == 2


async def test_an_old_boot_of_a_worker_is_refused_and_a_new_one_replaces(running: Running) -> None:
    current = await FakeWorker(running.channel, epoch=5).connect(granted=1)
    newer = await FakeWorker(running.channel, epoch=6).connect(granted=1)
    await current.ended()
    old = FakeWorker(running.channel, epoch=5)
    hello = pb.WorkerHello(peer=old.peer(), model="m", page_size=16)
    await old.open(old.stub.ConnectWorker, pb.ConnectWorkerRequest(hello=hello))
    await old.ended()
    assert old.error is not None
    assert old.error.code() is grpc.StatusCode.ABORTED
    assert newer.error is None
    assert running.dispatcher.core.fleet.workers["worker-0"].hello.epoch == 6  # type: ignore[index]


async def test_after_waking_up_it_begins_a_new_term_with_nothing(running: Running) -> None:
    worker = await FakeWorker(running.channel).connect()
    gateway = await FakeGateway(running.channel).connect()
    gateway.acquire(pb_acquire("a"))
    await gateway.until(lambda g: bool(g.heard["queued"]))
    running.dispatcher.restart(Epoch(77))
    await asyncio.gather(worker.ended(), gateway.ended())
    assert len(running.dispatcher.core.room) == 0
    back = await FakeGateway(running.channel).connect([pb_acquire("a", waited_ms=900)])
    await FakeWorker(running.channel).connect(granted=1)
    await back.until(placements(1))
    assert back.heard["welcome"][0].term == 77
    assert back.heard["placement"][0].term == 77


async def test_a_worker_can_be_drained(running: Running) -> None:
    worker = await FakeWorker(running.channel).connect(granted=9)
    gateway = await FakeGateway(running.channel).connect()
    gateway.acquire(pb_acquire("a"))
    await gateway.until(placements(1))
    answer = await gateway.stub.DrainWorker(pb.DrainWorkerRequest(worker="worker-0"))
    assert answer.live == 1
    await worker.until(lambda w: bool(w.heard["drain"]))
    gateway.acquire(pb_acquire("b"))
    await gateway.until(lambda g: bool(g.heard["queued"]))
    assert len(gateway.heard["placement"]) == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.stub.DrainWorker(pb.DrainWorkerRequest(worker="worker-9"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def quire(*words: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


async def test_the_command_line_drains_a_worker(running: Running) -> None:
    worker = await FakeWorker(running.channel).connect(granted=9)
    gateway = await FakeGateway(running.channel).connect()
    gateway.acquire(pb_acquire("a"))
    await gateway.until(placements(1))
    scheduler = f"127.0.0.1:{running.port}"
    code, out, _ = await quire("drain", "worker-0", "--scheduler", scheduler, "--json")
    assert (code, json.loads(out)) == (0, {"worker": "worker-0", "running": 1})
    await worker.until(lambda w: bool(w.heard["drain"]))
    code, out, err = await quire("drain", "worker-9", "--scheduler", scheduler)
    assert (code, out) == (1, "")
    assert err.startswith("error: worker: must be a connected worker (worker-0), got worker-9")
    assert err.count("\n") == 1


async def test_status_and_metrics_tell_what_waits(running: Running) -> None:
    await FakeWorker(running.channel).connect(granted=1)
    gateway = await FakeGateway(running.channel).connect()
    for name in "abc":
        gateway.acquire(pb_acquire(name, tokens=20))
    await gateway.until(lambda g: len(g.heard["queued"]) >= 2 and bool(g.heard["placement"]))
    status = await gateway.stub.GetStatus(pb.GetStatusRequest())
    assert (status.waiting, status.waiting_tokens, status.placed_total) == (2, 40, 1)
    assert [(w.name, w.placed, w.granted, w.total_pages) for w in status.workers] == [("worker-0", 1, 1, 64)]
    assert [(g.name, g.waiting) for g in status.gateways] == [("gateway-0", 2)]
    assert [(q.model, q.waiting) for q in status.queues] == [("m", 2)]
    shown = 'quire_requests{band="standard",request_class="short",state="waiting"} 2.0'
    await eventually(lambda: shown in running.metrics.render().decode())
    assert (
        'quire_placements_total{miss_reason="none",worker="worker-0"} 1.0'
        in running.metrics.render().decode()
    )


async def test_the_batch_window_gathers_over_the_wire() -> None:
    async with scheduler(batch_wait_ms=1000) as running:
        worker = await FakeWorker(running.channel).connect(granted=9)
        gateway = await FakeGateway(running.channel).connect()
        for name in "abc":
            gateway.acquire(pb_acquire(name))
        await gateway.until(placements(3))
        await worker.until(lambda w: bool(w.heard["placed"]))
        assert [p.highest_seq for p in worker.heard["placed"]] == [3], "placed in one go"


async def test_gateways_and_status_hear_of_a_band_that_degrades() -> None:
    bands = (BandConfig(name="live"), BandConfig(name="night", target_ms=1))
    async with scheduler(bands=bands, degrade_after_ms=0) as running:
        await FakeWorker(running.channel).connect(granted=0)
        gateway = await FakeGateway(running.channel).connect()
        gateway.acquire(pb_acquire("a"))
        await gateway.until(lambda g: any(model.steps for told in g.heard["models"] for model in told.models))
        status = await queue_status(f"127.0.0.1:{running.port}")
        assert status is not None
        assert [one.rpartition(":")[0] for one in status.degraded] == ["m/night"]
        assert [list(told.bands) for told in gateway.heard["welcome"]] == [["live", "night"]]
        assert running.metrics.registry.get_sample_value(
            "quire_degradation_step", {"model": "m", "band": "night"}
        )
        gateway.acquire(pb_acquire("b", band=3))
        await gateway.until(lambda g: bool(g.heard["rejected"]))
        assert "a rank from 1 to 2, got 3" in gateway.heard["rejected"][0].failure.message


async def test_a_worker_hears_how_its_tenants_stand() -> None:
    async with scheduler(new_policy=FairPolicy) as running:
        worker = await FakeWorker(running.channel).connect(granted=1)
        gateway = await FakeGateway(running.channel).connect()
        gateway.acquire(pb_acquire("a", tenant="one"))
        gateway.acquire(pb_acquire("b", tenant="other"))
        await gateway.until(placements(1))
        worker.report(seen=1, started=[gateway.heard["placement"][0].key])
        await worker.until(lambda w: bool(w.heard["ranks"]))
        ranks = worker.heard["ranks"][0]
        assert (ranks.version, list(ranks.over_share)) == (1, ["one"])
        assert ranks.over_share["one"] < 0, "one prompt is less than the quantum"
