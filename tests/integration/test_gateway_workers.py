"""What dies, blips, refuses or is silent behind the gateway: nothing leaks or is doubled, all is told.

The callers are patient here; `test_gateway_callers` is about those that are not.
"""

import asyncio

import grpc
import pytest

from services.chassis.errors import from_rpc_error
from services.domain.errors import (
    DependencyDown,
    Draining,
    NoWorker,
    ServeError,
    StaleAttempt,
    WorkerLost,
)
from services.domain.ids import WorkerId
from tests.fakes.gateway_rig import (
    ACME,
    ACME_KEY,
    Rig,
    a_request,
    failure_of,
    gateway_rig,
    generate,
    nothing_is_held,
    read_to_the_end,
    use_by,
)
from tests.fakes.worker_server import endless, says


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


@pytest.mark.failure("B183")
@pytest.mark.parametrize(("retry_percent", "num_workers_lost"), [(10.0, 2), (0.0, 1)])
async def test_a_request_lost_before_it_is_accepted_takes_two_workers_at_most(
    retry_percent: float, num_workers_lost: int
) -> None:
    async with gateway_rig(num_workers=4, retry_percent=retry_percent) as rig:
        for worker in rig.workers:
            worker.is_open.clear()
        call = rig.stub.Generate(a_request())
        for worker in rig.workers[:num_workers_lost]:
            await rig.until(lambda worker=worker: worker.submits)
            # The gateway has to know which boot it gave the request to.
            link = rig.parts.workers._links[WorkerId(worker.name)]
            await rig.until(lambda link=link: link._peer_epoch)
            await worker.close_port()
            worker.epoch += 1
            await worker.start()
        _, error = await read_to_the_end(aiter(call))
        assert type(from_rpc_error(error)) is WorkerLost
        assert [len(worker.submits) for worker in rig.workers] == [
            1 if number < num_workers_lost else 0 for number in range(4)
        ]
        await nothing_is_held(rig)


async def test_a_worker_that_cannot_be_reached_is_avoided() -> None:
    async with gateway_rig(num_workers=2) as rig:
        await rig.workers[0].stop()
        answer = await generate(rig)
        assert answer.receipt.worker == "worker-1"
        assert rig.scheduler.abandoned[0].seq == 1
        await nothing_is_held(rig)


@pytest.mark.failure("B076")
async def test_a_worker_that_dies_in_the_stream_is_a_typed_error_with_usage(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.01
    call = rig.stub.Generate(a_request(max_output_tokens=2000), metadata=ACME_KEY)
    stream = aiter(call)
    seen = 0
    while seen <= 5:
        seen += len((await anext(stream)).delta.text)
    monkeypatch.setattr("services.rpc.gateway_worker_link.DEAD_AFTER_S", 0.2)
    await rig.worker.stop()
    rest, error_ = await read_to_the_end(stream)
    seen += sum(len(message.delta.text) for message in rest)
    assert {message.WhichOneof("event") for message in rest} <= {"delta"}
    error = from_rpc_error(error_)
    assert type(error) is WorkerLost
    assert error_.code() is grpc.StatusCode.UNAVAILABLE
    assert error.detail.usage is not None
    assert error.detail.usage.output_tokens == seen
    await nothing_is_held(rig)
    use = await use_by(rig.quota, ACME)
    assert use.left_tokens >= 1_000_000 - seen - 6


@pytest.mark.failure("B164")
async def test_a_silent_worker_is_lost_after_three_missed_heartbeats(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.05
    call = rig.stub.Generate(a_request(max_output_tokens=2000))
    stream = aiter(call)
    await anext(stream)
    rig.worker.is_mute = True
    _, error = await read_to_the_end(stream)
    assert type(from_rpc_error(error)) is WorkerLost
    await nothing_is_held(rig)


async def test_a_blip_of_the_workers_connection_loses_and_doubles_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.rpc.gateway_worker_link.DEAD_AFTER_S", 60.0)
    text = "".join(f"{n:04d} " for n in range(200))
    rig.worker.script, rig.worker.step_s = says(text), 0.001
    call = rig.stub.Generate(a_request(max_output_tokens=2000))
    stream = aiter(call)
    seen = ""
    for _ in range(3):
        so_far = len(seen)
        while len(seen) == so_far:
            seen += (await anext(stream)).delta.text
        # Some tokens are made during the blip, and not all that are left, however long it lasts.
        rig.worker.is_open.clear()
        await rig.worker.close_port()
        num_tokens, num_hellos = rig.worker.num_tokens, len(rig.worker.hellos)
        rig.worker.is_open.set()
        await rig.until(lambda num_tokens=num_tokens: rig.worker.num_tokens > num_tokens + 10)
        rig.worker.is_open.clear()
        await rig.worker.start()
        await rig.until(lambda num_hellos=num_hellos: len(rig.worker.hellos) > num_hellos)
        rig.worker.is_open.set()
    async for message in stream:
        seen += message.delta.text
    assert seen == text
    assert len(rig.worker.submits) == 1
    assert [hello.worker_epoch for hello in rig.worker.hellos[:4]] == [0, 1000, 1000, 1000]
    await nothing_is_held(rig)


async def test_cancels_and_stops_made_during_a_blip_reach_the_worker(rig: Rig) -> None:
    rig.worker.script, rig.worker.step_s = endless, 0.02
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
    rig.worker.script, rig.worker.step_s = endless, 0.02
    call = rig.stub.Generate(a_request(max_output_tokens=2000))
    stream = aiter(call)
    await anext(stream)
    await rig.worker.close_port()
    rig.worker.epoch += 1
    await rig.worker.start()
    _, error = await read_to_the_end(stream)
    assert type(from_rpc_error(error)) is WorkerLost
    rig.worker.script = says("again")
    assert (await generate(rig)).text() == "again"


async def test_waiting_requests_survive_a_scheduler_that_restarts(rig: Rig) -> None:
    rig.scheduler.holds = True
    tasks = [asyncio.create_task(generate(rig)) for _ in range(300)]
    await rig.until(lambda: len(rig.scheduler.waiting) == 300)
    await rig.scheduler.stop()
    num_hellos = len(rig.scheduler.hellos)
    await rig.until(lambda: not rig.parts.is_ready)
    rig.scheduler.waiting.clear()
    rig.scheduler.acquired.clear()
    rig.scheduler.holds, rig.scheduler.term = False, 2
    await rig.scheduler.start()
    answers = await asyncio.gather(*tasks)
    assert [answer.text() for answer in answers] == ["hello world"] * 300
    assert len(rig.worker.submits) == 300
    waiting = rig.scheduler.hellos[num_hellos].waiting
    assert len(waiting) == 256
    assert min(acquire.waited_ms for acquire in waiting) > 0
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
    num_hellos = len(rig.scheduler.hellos)
    rig.scheduler.term = 4
    await rig.scheduler.start()
    await rig.until(lambda: len(rig.scheduler.hellos) >= num_hellos + 2)
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
    error = await failure_of(rig, metadata=ACME_KEY)
    assert type(error) is DependencyDown
    assert (await task).text() == "x" * 100
    await rig.until(lambda: len(rig.parts.table) == 0)
    await rig.until(lambda: rig.parts.settler.num_pending == 2)
    rig.quota.is_down = False  # type: ignore[attr-defined]
    await nothing_is_held(rig)
    assert (await generate(rig)).text() == "x" * 100


@pytest.mark.failure("B142")
async def test_each_worker_has_a_stream_of_its_own() -> None:
    async with gateway_rig(num_workers=3) as rig:
        for worker in rig.workers:
            rig.scheduler.workers = [worker]
            await asyncio.gather(*[generate(rig) for _ in range(5)])
        assert [len(worker.submits) for worker in rig.workers] == [5, 5, 5]
        assert all(0 < len(worker.hellos) < 5 for worker in rig.workers), "one stream for many requests"


async def test_no_worker_is_told_with_a_retry_hint(rig: Rig) -> None:
    rig.scheduler.rejects = NoWorker("none left")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(rig)
    assert "grpc-retry-pushback-ms" in dict(caught.value.trailing_metadata() or ())
