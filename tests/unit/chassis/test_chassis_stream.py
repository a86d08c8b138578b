import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from services.chassis import stream
from services.chassis.grpc import bind, create_channel, create_server
from services.chassis.stream import (
    Liveness,
    Outbox,
    PeerSilent,
    first_message,
    keep_connected,
    run_duplex,
    serve_duplex,
)
from services.domain.errors import NoWorker


async def test_items_come_out_in_order_and_the_rest_after_close() -> None:
    box: Outbox[int] = Outbox()
    assert all(box.put_nowait(n) for n in range(3))
    box.close()
    assert [item async for item in box] == [0, 1, 2]


@pytest.mark.failure("B016")
async def test_putting_into_a_closed_outbox_is_counted_and_harmless() -> None:
    box: Outbox[int] = Outbox()
    box.close()
    assert not box.put_nowait(1)
    assert box.num_dropped == 1
    assert not box.overflowed


async def test_a_full_outbox_ends_its_stream() -> None:
    box: Outbox[int] = Outbox(max_items=2)
    assert [box.put_nowait(n) for n in range(3)] == [True, True, False]
    assert box.overflowed
    assert [item async for item in box] == []


async def test_a_waiting_reader_wakes_up() -> None:
    box: Outbox[int] = Outbox()
    reader = asyncio.create_task(anext(box))
    await asyncio.sleep(0)
    box.put_nowait(7)
    assert await reader == 7


def test_a_peer_is_dead_after_three_missed_heartbeats() -> None:
    liveness = Liveness(10.0)
    assert not liveness.is_dead(13.4)
    assert liveness.is_dead(13.6)
    liveness.saw(13.6)
    assert not liveness.is_dead(17.0)


def test_a_stall_of_this_process_is_not_a_peers_silence() -> None:
    liveness = Liveness(10.0)
    liveness.excuse(5.0)
    assert not liveness.is_dead(18.4)
    assert liveness.is_dead(18.6)


def beat_up() -> pb.ConnectWorkerRequest:
    return pb.ConnectWorkerRequest(heartbeat={})


def beat_down() -> pb.ConnectWorkerResponse:
    return pb.ConnectWorkerResponse(heartbeat={})


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Welcomes, echoes each report's number as a placement, and counts who is connected."""

    def __init__(self) -> None:
        self.connected = 0
        self.ended = asyncio.Event()
        self.outboxes: list[Outbox[pb.ConnectWorkerResponse]] = []
        self.mute = False

    async def ConnectWorker(self, requests: Any, context: Any) -> None:
        await first_message(requests)
        box: Outbox[pb.ConnectWorkerResponse] = Outbox()
        self.outboxes.append(box)
        self.connected += 1
        try:
            if self.mute:
                await asyncio.Event().wait()
            box.put_nowait(pb.ConnectWorkerResponse(welcome=pb.WorkerWelcome(term=1)))
            await serve_duplex(context, requests, box, lambda m: self.take(box, m), beat_down)
        finally:
            self.connected -= 1
            self.ended.set()

    def take(self, box: Outbox[pb.ConnectWorkerResponse], message: pb.ConnectWorkerRequest) -> None:
        if message.WhichOneof("message") == "report":
            box.put_nowait(pb.ConnectWorkerResponse(placed=pb.Placed(highest_seq=message.report.seq)))


@pytest.fixture
async def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
async def stub(scheduler: Scheduler) -> AsyncIterator[Any]:
    server = create_server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    async with create_channel(f"127.0.0.1:{port}") as channel:
        yield scheduler_pb2_grpc.SchedulerServiceStub(channel)
    await server.stop(None)


class Worker:
    """The client of one link; reconnects and says hello each time."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.received: list[int] = []
        self.welcomes = 0
        self.changed = asyncio.Event()
        self.outbox: Outbox[pb.ConnectWorkerRequest] = Outbox()

    async def session(self) -> None:
        self.outbox = Outbox()
        self.outbox.put_nowait(pb.ConnectWorkerRequest(hello=pb.WorkerHello(model="m")))
        await run_duplex(self.stub.ConnectWorker, self.outbox, self.take, beat_up)

    def take(self, message: pb.ConnectWorkerResponse) -> None:
        kind = message.WhichOneof("message")
        self.welcomes += kind == "welcome"
        if kind == "placed":
            self.received.append(message.placed.highest_seq)
        self.changed.set()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def test_messages_go_both_ways_in_order(scheduler: Scheduler, stub: Any) -> None:
    worker = Worker(stub)
    link = asyncio.create_task(worker.session())
    await worker.until(lambda: worker.welcomes >= 1)
    for seq in range(1, 101):
        worker.outbox.put_nowait(pb.ConnectWorkerRequest(report=pb.Report(seq=seq)))
    await worker.until(lambda: len(worker.received) == 100)
    assert worker.received == list(range(1, 101))
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)
    await asyncio.wait_for(scheduler.ended.wait(), 60)
    assert scheduler.connected == 0


async def test_a_link_comes_back_after_the_server_ended_it(scheduler: Scheduler, stub: Any) -> None:
    worker = Worker(stub)
    link = asyncio.create_task(keep_connected("scheduler", worker.session, jitter=random.Random(1)))
    for boot in itertools.count(1):
        await worker.until(lambda boot=boot: worker.welcomes >= boot)
        if boot == 3:
            break
        scheduler.outboxes[-1].close()
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)


async def test_a_bug_in_a_session_ends_the_loop() -> None:
    async def session() -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        await keep_connected("peer", session)


async def test_the_pause_between_attempts_grows_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    async def session() -> None:
        if len(pauses) == 8:
            raise asyncio.CancelledError
        raise NoWorker("down")

    monkeypatch.setattr(stream.asyncio, "sleep", note)
    with pytest.raises(asyncio.CancelledError):
        await keep_connected("peer", session, jitter=random.Random(2))
    assert 0.025 <= pauses[0] <= 0.05
    assert all(0.5 <= pause <= 1.0 for pause in pauses[5:])


@pytest.mark.parametrize("side", ["client", "server"])
async def test_a_silent_peer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, scheduler: Scheduler, stub: Any, side: str
) -> None:
    monkeypatch.setattr(stream, "DEAD_AFTER_S", 0.2)
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.05)
    if side == "client":
        scheduler.mute = True
        with pytest.raises(PeerSilent):
            await asyncio.wait_for(Worker(stub).session(), 60)
        return
    silent: Outbox[pb.ConnectWorkerRequest] = Outbox()
    silent.put_nowait(pb.ConnectWorkerRequest(hello=pb.WorkerHello()))
    with pytest.raises(grpc.RpcError):
        async for _ in stub.ConnectWorker(silent):
            pass
    await asyncio.wait_for(scheduler.ended.wait(), 60)


@pytest.mark.failure("B016")
async def test_clients_that_vanish_leave_the_server_well(scheduler: Scheduler, stub: Any) -> None:
    draw = random.Random(3)
    for _ in range(40):
        worker = Worker(stub)
        link = asyncio.create_task(worker.session())
        for _ in range(draw.randrange(6)):
            worker.outbox.put_nowait(pb.ConnectWorkerRequest(report=pb.Report(seq=1)))
            await asyncio.sleep(0)
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)
    worker = Worker(stub)
    link = asyncio.create_task(worker.session())
    await worker.until(lambda: worker.welcomes >= 1)
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)


async def test_a_channel_closed_under_a_link_is_a_lost_peer_and_no_cancellation(
    scheduler: Scheduler,
) -> None:
    server = create_server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
    channel = create_channel(f"127.0.0.1:{bind(server, '127.0.0.1:0')}")
    await server.start()
    worker = Worker(scheduler_pb2_grpc.SchedulerServiceStub(channel))
    link = asyncio.create_task(worker.session())
    await worker.until(lambda: worker.welcomes >= 1)
    await channel.close()
    with pytest.raises((PeerSilent, grpc.RpcError)):
        await link
    await server.stop(None)
