"""The scheduler over real gRPC: gateways and workers come, go, restart, fall silent and are drained."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import grpc
import pytest

from protos.scheduler.v1 import scheduler_pb2 as pb
from services.domain.ids import Epoch
from tests.fakes.scheduler_peers import FakeGateway, FakeWorker, pb_acquire
from tests.integration.running_scheduler import Running, eventually, placements, scheduler


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with scheduler() as one:
        yield one


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
