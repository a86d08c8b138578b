import asyncio

import pytest

from protos.scheduler.v1 import scheduler_pb2 as pb
from services.chassis import gather
from services.chassis.gather import each
from services.chassis.stream import Outbox


def report(seq: int) -> pb.ConnectGatewayResponse:
    return pb.ConnectGatewayResponse(queued=pb.Queued(position=seq))


def numbers(message: pb.ConnectGatewayResponse) -> list[int]:
    return [one.queued.position for one in each(message)]


def outbox(count: int, *, gathers: bool = True) -> Outbox[pb.ConnectGatewayResponse]:
    box: Outbox[pb.ConnectGatewayResponse] = Outbox()
    box.gathers = gathers
    for seq in range(1, count + 1):
        box.put_nowait(report(seq))
    return box


async def test_a_lone_message_goes_as_it_is() -> None:
    message = await anext(outbox(1))
    assert message == report(1)
    assert numbers(message) == [1]


async def test_what_is_queued_when_the_writer_comes_goes_out_as_one_in_its_order() -> None:
    box = outbox(5)
    assert numbers(await anext(box)) == [1, 2, 3, 4, 5]
    assert len(box) == 0


async def test_what_is_put_while_the_writer_waits_to_run_goes_along() -> None:
    box = outbox(0)
    writer = asyncio.create_task(anext(box))
    await asyncio.sleep(0)
    for seq in (1, 2, 3):
        box.put_nowait(report(seq))
    assert numbers(await writer) == [1, 2, 3]


async def test_a_peer_that_has_not_said_that_it_reads_several_gets_them_one_by_one() -> None:
    box = outbox(3, gathers=False)
    assert [await anext(box) for _ in range(3)] == [report(1), report(2), report(3)]


async def test_one_message_holds_no_more_than_its_reader_takes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gather, "MOST_TOGETHER", 2)
    box = outbox(5)
    box.close()
    assert [numbers(message) async for message in box] == [[1, 2], [3, 4], [5]]


async def test_large_messages_are_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MOST_BYTES", 2 * report(1).ByteSize())
    box = outbox(5)
    large = pb.ConnectGatewayResponse(rejected=pb.Rejected(key={"request_id": "r" * 100}))
    for message in (large, report(6)):
        box.put_nowait(message)
    box.close()
    assert [len(each(message)) async for message in box] == [2, 2, 1, 1, 1]
