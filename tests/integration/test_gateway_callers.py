"""What callers do to the gateway: leave, stall, ask twice, ask too much; and what one that drains tells them.

Workers and scheduler are well here; `test_gateway_workers` is about those that are not.
"""

import asyncio
import gc
import random
from typing import Any

import grpc
import pytest
import structlog

from protos.gateway.v1 import gateway_pb2 as pb
from protos.gateway.v1 import gateway_pb2_grpc
from services.chassis.errors import from_rpc_error
from services.chassis.grpc import create_channel
from services.domain.errors import (
    Draining,
    DuplicateKey,
    SlowReader,
    UnknownRequest,
)
from tests.fakes.gateway_rig import (
    ACME_KEY,
    Rig,
    a_request,
    failure_of,
    gateway_rig,
    generate,
    nothing_is_held,
    read_to_the_end,
)
from tests.fakes.worker_server import PEAK_PAGES, endless, says


def finished(lines: list[Any]) -> list[Any]:
    return [line for line in lines if line["event"] == "request_finished"]


@pytest.mark.failure("B001")
@pytest.mark.failure("B010")
@pytest.mark.parametrize("n", [1, 4])
async def test_a_caller_that_cancels_stops_the_worker(rig: Rig, n: int) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.02
    with structlog.testing.capture_logs() as lines:
        call = rig.stub.Generate(a_request(max_output_tokens=2000, n=n))
        async for message in call:
            if message.WhichOneof("event") == "delta":
                break
        call.cancel()
        await rig.until(lambda: rig.worker.cancelled)
        assert rig.worker.running == {}
        await nothing_is_held(rig)
        # Its line waits for the worker's last word.
        await rig.until(lambda: finished(lines))
    (line,) = finished(lines)
    assert (line["reason"], line["peak_pages"], line["preemptions"]) == ("CANCELLED", PEAK_PAGES, 0)
    assert rig.metric("quire_requests_finished_total", reason="CANCELLED") == 1


async def test_the_line_of_a_cancelled_request_comes_also_when_its_worker_says_nothing_more(rig: Rig) -> None:
    rig.worker.script = endless
    rig.worker.is_open.clear()
    with structlog.testing.capture_logs() as lines:
        call = rig.stub.Generate(a_request(max_output_tokens=2000))
        await rig.until(lambda: rig.worker.running)
        call.cancel()
        await rig.until(lambda: rig.worker.cancelled)
        await nothing_is_held(rig)
        # Another boot answers: it knows nothing of the request.
        rig.worker.epoch += 1
        await rig.worker.close_port()
        await rig.worker.start()
        await rig.until(lambda: finished(lines))
    (line,) = finished(lines)
    assert (line["reason"], line["peak_pages"], line["preemptions"]) == ("CANCELLED", None, None)


@pytest.mark.failure("B016")
async def test_two_hundred_streams_closed_at_random_leave_the_gateway_well(rig: Rig) -> None:
    """Most cancel after some messages, the rest vanish with their channel; tokens are made all the time."""
    draw = random.Random(5)
    rig.worker.script, rig.worker.step_s = endless, 0.02

    async def leave(call: Any, num_messages: int) -> None:
        for _ in range(num_messages):
            await call.read()
        call.cancel()

    channel = create_channel(f"127.0.0.1:{rig.port}")
    vanishing = [
        gateway_pb2_grpc.GenerateServiceStub(channel).Generate(a_request(max_output_tokens=2000))
        for _ in range(40)
    ]
    calls = [rig.stub.Generate(a_request(max_output_tokens=2000)) for _ in range(160)]
    for call in vanishing:
        await call.read()
    leaving = asyncio.gather(*(leave(call, draw.randrange(1, 12)) for call in calls))
    await channel.close()
    await leaving
    await rig.until(lambda: len(rig.worker.cancelled) == 200)
    await nothing_is_held(rig)
    assert rig.metric("quire_requests_finished_total", reason="CANCELLED") == 200
    rig.worker.script = says("alive")
    assert (await generate(rig)).text() == "alive"


@pytest.mark.failure("B003")
async def test_a_request_cancelled_in_the_queue_leaves_it_and_is_never_submitted(rig: Rig) -> None:
    rig.scheduler.holds = True
    calls = [rig.stub.Generate(a_request()) for _ in range(64)]
    await rig.until(lambda: len(rig.scheduler.waiting) == 64)
    for call in calls:
        call.cancel()
    await rig.until(lambda: not rig.scheduler.waiting)
    rig.scheduler.holds = False
    await generate(rig)
    assert len(rig.worker.submits) == 1
    await nothing_is_held(rig)


async def test_a_placement_that_comes_too_late_is_given_back(rig: Rig) -> None:
    rig.scheduler.holds = True
    call = rig.stub.Generate(a_request())
    await rig.until(lambda: rig.scheduler.acquired)
    call.cancel()
    await rig.until(lambda: rig.scheduler.abandoned)
    rig.scheduler.place(rig.scheduler.acquired[0])
    await rig.until(lambda: len(rig.scheduler.abandoned) == 2)
    assert rig.scheduler.abandoned[1].seq == 1
    assert rig.worker.submits == []
    await nothing_is_held(rig)


@pytest.mark.failure("B004")
@pytest.mark.failure("B011")
@pytest.mark.failure("B062")
@pytest.mark.failure("B133")
@pytest.mark.failure("B144")
async def test_after_hundreds_of_mixed_ends_nothing_is_left(rig: Rig) -> None:
    draw = random.Random(5)
    rig.worker.script, rig.worker.step_s = says("some text to say"), 0.001

    async def one() -> None:
        kind = draw.randrange(6)
        if kind == 0:
            await generate(rig, metadata=ACME_KEY)
        elif kind == 1:
            await failure_of(rig, n=99)
        elif kind == 2:
            await failure_of(rig, deadline_s=draw.uniform(0.001, 0.01), n=2)
        else:
            call = rig.stub.Generate(a_request(n=draw.randrange(1, 4)), metadata=ACME_KEY)
            for _ in range(draw.randrange(4)):
                await call.read()
            call.cancel()

    async def collect() -> None:
        gc.freeze()  # Only what begins from here on can be lost: the rest need not be looked through.
        try:
            while True:
                gc.collect()
                await asyncio.sleep(0.05)
        finally:
            gc.unfreeze()

    collecting = asyncio.create_task(collect())
    for _ in range(8):
        await asyncio.gather(*[one() for _ in range(50)], return_exceptions=True)
    collecting.cancel()
    await nothing_is_held(rig)
    await rig.until(lambda: not rig.worker.running)
    assert (await generate(rig)).text() == "some text to say"


async def test_a_reader_that_does_not_read_is_ended_and_the_worker_never_waits() -> None:
    async with gateway_rig(max_unread_tokens=64) as rig:
        rig.worker.script, rig.worker.step_s = endless, 0.001
        rig.worker.logprob = lambda token_id: (-1.0, [(other, -2.0) for other in range(20)])
        window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384)]
        channel = create_channel(f"127.0.0.1:{rig.port}", options=window)
        stub = gateway_pb2_grpc.GenerateServiceStub(channel)
        call = stub.Generate(a_request(max_output_tokens=2000, logprobs=20))
        await rig.until(lambda: rig.worker.cancelled)
        assert rig.worker.num_tokens < 2000
        await rig.until(lambda: rig.parts.workers.num_live == 0)
        _, status = await read_to_the_end(aiter(call))
        error = from_rpc_error(status)
        assert type(error) is SlowReader
        assert error.detail.usage is not None
        await channel.close()
        await nothing_is_held(rig)


async def test_an_idempotency_key_serves_once_and_names_its_request(rig: Rig) -> None:
    first = await generate(rig, idempotency_key="order-1", metadata=ACME_KEY)
    error = await failure_of(rig, idempotency_key="order-1", metadata=ACME_KEY)
    assert type(error) is DuplicateKey
    request_id = error.detail.metadata["request_id"]
    assert request_id == first.receipt.request_id
    asked = pb.GetRequestRequest(request_id=request_id)
    found = await rig.stub.GetRequest(asked, metadata=ACME_KEY)
    assert found.receipt == first.receipt
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.stub.GetRequest(asked)
    assert type(from_rpc_error(caught.value)) is UnknownRequest


async def test_a_request_can_be_followed_from_queue_to_failure(rig: Rig) -> None:
    rig.scheduler.holds = True
    rig.worker.script, rig.worker.step_s = endless, 0.02
    call = rig.stub.Generate(a_request(max_output_tokens=2000))
    await rig.until(lambda: rig.scheduler.acquired)
    request_id = rig.scheduler.acquired[0].key.request_id
    rig.scheduler.queue(rig.scheduler.acquired[0], 7, None)
    assert (await call.read()).queued.position == 7

    async def state() -> pb.GetRequestResponse:
        return await rig.stub.GetRequest(pb.GetRequestRequest(request_id=request_id))

    assert (await state()).queued.position == 7
    rig.scheduler.place_all()
    await rig.until(lambda: rig.worker.num_tokens > 2)
    running = (await state()).running
    assert (running.worker, running.attempt) == ("worker-0", 1)
    call.cancel()
    await rig.settled()
    failure = (await state()).failure
    assert failure.reason == "CANCELLED"
    assert failure.usage.prompt_tokens == 6


@pytest.mark.failure("B161")
async def test_a_draining_gateway_admits_nothing_and_finishes_what_runs(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = says("x" * 100), 0.002
    task = asyncio.create_task(generate(rig))
    await rig.until(lambda: rig.worker.num_tokens > 3)
    rig.parts.generate.is_draining = True
    error = await failure_of(rig)
    assert type(error) is Draining
    assert error.detail.retry_after_s is not None
    assert not rig.parts.is_ready
    assert (await task).text() == "x" * 100


@pytest.mark.failure("B137")
async def test_what_has_not_finished_in_time_is_told_to_come_back(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.005
    call = rig.stub.Generate(a_request(max_output_tokens=2000))
    stream = aiter(call)
    await anext(stream)
    rig.parts.table.fail_all(lambda: Draining("the gateway shuts down"))
    _, error = await read_to_the_end(stream)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "1000"
    await nothing_is_held(rig)


@pytest.mark.failure("B180")
async def test_prompts_outputs_stops_and_keys_are_in_no_log_and_no_metric(rig: Rig) -> None:
    canary = "kanarienvogel"
    rig.worker.script = says(f"{canary} out")
    with structlog.testing.capture_logs() as lines:
        await generate(rig, prompt=canary, stop=[canary + "stop"], client_label="x", metadata=ACME_KEY)
        await failure_of(rig, prompt=canary, n=99)
        await failure_of(rig, prompt=canary, metadata=(("authorization", f"Bearer {canary}"),))
        call = rig.stub.Generate(a_request(prompt=canary))
        call.cancel()
        await rig.settled()
    assert finished(lines)
    assert canary not in repr(lines)
    assert "acme-key" not in repr(lines)
    assert canary not in rig.metrics.render().decode()
