"""What leaves, dies, blips or stalls around the gateway: nothing leaks, nothing is doubled, all is told."""

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator

import grpc
import pytest
import structlog

from protos.gateway.v1 import gateway_pb2 as pb
from protos.gateway.v1 import gateway_pb2_grpc
from services.chassis.errors import from_rpc_error
from services.chassis.grpc import create_channel
from services.domain.errors import (
    DependencyDown,
    Draining,
    DuplicateKey,
    NoWorker,
    ServeError,
    SlowReader,
    StaleAttempt,
    UnknownRequest,
    WorkerLost,
)
from tests.fakes.gateway_rig import ACME, ACME_KEY, TENANTS, Rig, a_request, gateway_rig, generate, use_by
from tests.fakes.worker_server import endless, says


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with gateway_rig() as started:
        yield started


async def failure_of(rig: Rig, **fields: object) -> ServeError:
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


@pytest.mark.failure("B001")
@pytest.mark.failure("B010")
@pytest.mark.parametrize("n", [1, 4])
async def test_a_caller_that_cancels_stops_the_worker(rig: Rig, n: int) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.002
    with structlog.testing.capture_logs() as lines:
        call = rig.stub.Generate(a_request(max_output_tokens=2000, n=n))
        async for message in call:
            if message.WhichOneof("event") == "delta":
                break
        call.cancel()
        await rig.until(lambda: rig.worker.cancelled)
        assert rig.worker.running == {}
        await nothing_is_held(rig)
    (line,) = [line for line in lines if line["event"] == "request_finished"]
    # The worker's last word comes later, and nothing is made up in its place.
    assert (line["reason"], line["peak_pages"], line["preemptions"]) == ("CANCELLED", None, None)
    assert rig.metric("quire_requests_finished_total", reason="CANCELLED") == 1


@pytest.mark.failure("B016")
async def test_a_closed_channel_stops_all_of_its_streams(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.002
    channel = create_channel(f"127.0.0.1:{rig.port}")
    stub = gateway_pb2_grpc.GenerateServiceStub(channel)
    calls = [stub.Generate(a_request(max_output_tokens=2000)) for _ in range(20)]
    for call in calls:
        await call.read()
    await channel.close()
    await rig.until(lambda: len(rig.worker.cancelled) == 20)
    await nothing_is_held(rig)
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
        while True:
            gc.collect()
            await asyncio.sleep(0.05)

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


@pytest.mark.parametrize("refusal", [StaleAttempt("old seq"), Draining("worker drains")])
async def test_a_refused_placement_is_tried_elsewhere(refusal: ServeError) -> None:
    async with gateway_rig(num_workers=2) as rig:
        rig.workers[0].refuses = refusal
        if isinstance(refusal, StaleAttempt):
            rig.scheduler.workers = [rig.workers[0]]
            rig.workers[0].num_refusals = 1
        answer = await generate(rig)
        if not isinstance(refusal, StaleAttempt):
            assert list(rig.scheduler.acquired[1].avoid) == ["worker-0"]
        assert answer.text() == "hello world"
        assert answer.receipt.attempts == 2
        assert [acquire.key.attempt for acquire in rig.scheduler.acquired] == [1, 2]
        await nothing_is_held(rig)


@pytest.mark.failure("B183")
async def test_a_request_that_is_refused_everywhere_is_tried_three_times(rig: Rig) -> None:
    rig.worker.refuses = StaleAttempt("always")
    error = await failure_of(rig)
    assert type(error) is StaleAttempt
    assert len(rig.worker.submits) == 3
    await nothing_is_held(rig)


async def test_a_worker_that_cannot_be_reached_is_avoided() -> None:
    async with gateway_rig(num_workers=2) as rig:
        await rig.workers[0].stop()
        answer = await generate(rig)
        assert answer.receipt.worker == "worker-1"
        assert rig.scheduler.abandoned[0].seq == 1
        await nothing_is_held(rig)


@pytest.mark.failure("B076")
async def test_a_worker_that_dies_in_the_stream_is_a_typed_error_with_usage(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.005
    call = rig.stub.Generate(a_request(max_output_tokens=2000), metadata=ACME_KEY)
    stream = aiter(call)
    seen = 0
    while seen <= 5:
        seen += len((await anext(stream)).delta.text)
    died_at = time.monotonic()
    await rig.worker.stop()
    rest, error_ = await read_to_the_end(stream)
    seen += sum(len(message.delta.text) for message in rest)
    assert {message.WhichOneof("event") for message in rest} <= {"delta"}
    error = from_rpc_error(error_)
    assert type(error) is WorkerLost
    assert error_.code() is grpc.StatusCode.UNAVAILABLE
    assert error.detail.usage is not None
    assert error.detail.usage.output_tokens == seen
    assert time.monotonic() - died_at < 5
    await nothing_is_held(rig)
    use = await use_by(rig.quota, ACME)
    assert use.left_tokens >= 1_000_000 - seen - 6


@pytest.mark.failure("B164")
async def test_a_silent_worker_is_lost_after_three_missed_heartbeats(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.01
    call = rig.stub.Generate(a_request(max_output_tokens=2000))
    stream = aiter(call)
    await anext(stream)
    rig.worker.is_mute = True
    began = time.monotonic()
    _, error = await read_to_the_end(stream)
    assert type(from_rpc_error(error)) is WorkerLost
    assert time.monotonic() - began < 5
    await nothing_is_held(rig)


async def test_a_blip_of_the_workers_connection_loses_and_doubles_nothing(rig: Rig) -> None:
    text = "".join(f"{n:04d} " for n in range(200))
    rig.worker.script, rig.worker.step_s = says(text), 0.001
    call = rig.stub.Generate(a_request(max_output_tokens=2000))
    seen = ""
    blips = 0
    async for message in call:
        seen += message.delta.text
        if len(seen) > 200 * (blips + 1) and blips < 3:
            blips += 1
            await rig.worker.close_port()
            await rig.worker.start()
    assert seen == text
    assert blips == 3
    assert len(rig.worker.submits) == 1
    assert [hello.worker_epoch for hello in rig.worker.hellos] == [0, 1000, 1000, 1000]
    await nothing_is_held(rig)


async def test_cancels_and_stops_made_during_a_blip_reach_the_worker(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.002
    call = rig.stub.Generate(a_request(max_output_tokens=2000))
    await rig.until(lambda: rig.worker.num_tokens > 3)
    await rig.worker.close_port()
    call.cancel()
    await rig.until(lambda: len(rig.parts.table) == 0)
    assert rig.worker.running
    await rig.worker.start()
    await rig.until(lambda: not rig.worker.running)
    await nothing_is_held(rig)


async def test_a_worker_that_restarted_meanwhile_is_lost_at_once(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.002
    call = rig.stub.Generate(a_request(max_output_tokens=2000))
    stream = aiter(call)
    await anext(stream)
    await rig.worker.close_port()
    rig.worker.epoch += 1
    await rig.worker.start()
    began = time.monotonic()
    _, error = await read_to_the_end(stream)
    assert type(from_rpc_error(error)) is WorkerLost
    assert time.monotonic() - began < 2
    rig.worker.script = says("again")
    assert (await generate(rig)).text() == "again"


async def test_waiting_requests_survive_a_scheduler_that_restarts(rig: Rig) -> None:
    rig.scheduler.holds = True
    tasks = [asyncio.create_task(generate(rig)) for _ in range(300)]
    await rig.until(lambda: len(rig.scheduler.waiting) == 300)
    await rig.scheduler.stop()
    await rig.until(lambda: not rig.parts.is_ready)
    rig.scheduler.waiting.clear()
    rig.scheduler.acquired.clear()
    rig.scheduler.holds, rig.scheduler.term = False, 2
    await rig.scheduler.start()
    answers = await asyncio.gather(*tasks)
    assert [answer.text() for answer in answers] == ["hello world"] * 300
    assert len(rig.worker.submits) == 300
    assert len(rig.scheduler.hellos[1].waiting) == 256
    assert min(acquire.waited_ms for acquire in rig.scheduler.hellos[1].waiting) > 0
    await nothing_is_held(rig)


async def test_running_streams_do_not_notice_that_the_scheduler_is_gone(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = says("x" * 300), 0.002
    task = asyncio.create_task(generate(rig))
    await rig.until(lambda: rig.worker.num_tokens > 3)
    await rig.scheduler.stop()
    assert (await task).text() == "x" * 300


async def test_a_scheduler_of_a_lower_term_is_not_obeyed(rig: Rig) -> None:
    await rig.scheduler.stop()
    rig.scheduler.term = 5
    await rig.scheduler.start()
    await rig.until(lambda: rig.parts.scheduler.term == 5 and rig.parts.is_ready)
    await rig.scheduler.stop()
    rig.scheduler.term = 4
    await rig.scheduler.start()
    await rig.until(lambda: len(rig.scheduler.hellos) >= 4)
    assert not rig.parts.scheduler.is_connected
    await rig.scheduler.stop()
    rig.scheduler.term = 6
    await rig.scheduler.start()
    assert (await generate(rig)).text() == "hello world"


@pytest.mark.failure("B152")
async def test_new_requests_are_refused_while_the_store_is_down_and_running_ones_go_on(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = says("x" * 100), 0.002
    task = asyncio.create_task(generate(rig))
    await rig.until(lambda: rig.worker.num_tokens > 3)
    rig.quota.is_down = True  # type: ignore[attr-defined]
    error = await failure_of(rig)
    assert type(error) is DependencyDown
    assert (await task).text() == "x" * 100
    await rig.until(lambda: len(rig.parts.table) == 0)
    assert rig.parts.settler.num_pending == 2
    rig.quota.is_down = False  # type: ignore[attr-defined]
    await nothing_is_held(rig)
    assert (await generate(rig)).text() == "x" * 100


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
    rig.worker.script, rig.worker.step_s = endless, 0.01
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


@pytest.mark.failure("B142")
async def test_each_worker_has_a_stream_of_its_own() -> None:
    async with gateway_rig(num_workers=3) as rig:
        for worker in rig.workers:
            rig.scheduler.workers = [worker]
            await asyncio.gather(*[generate(rig) for _ in range(5)])
        assert [len(worker.submits) for worker in rig.workers] == [5, 5, 5]
        assert [len(worker.hellos) for worker in rig.workers] == [1, 1, 1]


@pytest.mark.failure("B139")
async def test_large_messages_pass_up_to_the_limit_of_both_ends() -> None:
    async with gateway_rig(max_context_tokens=2_000_000, total_pages=200_000) as rig:
        answer = await generate(rig, prompt="x" * 1_500_000)
        assert answer.receipt.usage.prompt_tokens == 1_500_001
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(rig, prompt="x" * (17 * 2**20))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await generate(rig)).text() == "hello world"


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
    assert any(line["event"] == "request_finished" for line in lines)
    assert canary not in repr(lines)
    assert "acme-key" not in repr(lines)
    assert canary not in rig.metrics.render().decode()


async def test_no_worker_is_told_with_a_retry_hint(rig: Rig) -> None:
    rig.scheduler.rejects = NoWorker("none left")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(rig)
    assert "grpc-retry-pushback-ms" in dict(caught.value.trailing_metadata() or ())
