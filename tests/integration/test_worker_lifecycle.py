"""How a worker starts, drains, fails, hangs and wakes up, inside the test's process."""

import asyncio
import threading
from collections.abc import Awaitable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.types.v1 import types_pb2
from protos.worker.v1 import worker_pb2 as pb
from protos.worker.v1 import worker_pb2_grpc
from services.chassis.fatal import FatalError
from services.chassis.grpc import create_channel
from services.chassis.lifecycle import Lifecycle
from services.domain.errors import Code
from tests.integration.worker_bench import LIMIT_S, HandGateway, RunningWorker, running_worker
from worker.app import Worker
from worker.config import ExecutorKind, WorkerConfig
from worker.loading import Loaded

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(worker: RunningWorker) -> int:
    stub = health_pb2_grpc.HealthStub(worker.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service="protos.worker.v1.WorkerService"))
    return answer.status


async def until_health(worker: RunningWorker, status: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await health(worker) != status:  # noqa: ASYNC110 - the state is another process's, as it were
            await asyncio.sleep(0.02)


@pytest.mark.failure("B161")
async def test_draining_finishes_what_runs_and_refuses_what_is_new() -> None:
    async with running_worker(step_ms=20) as worker:
        gateway = HandGateway(worker)
        await gateway.connect()
        handle = await gateway.submit(max_output=1900)
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > 0)
        assert await health(worker) == SERVING
        worker.lifecycle.stopping.set()
        await until_health(worker, NOT_SERVING)
        late = await gateway.wait_end(await gateway.submit())
        assert (late.refused.code, late.refused.reason) == (Code.UNAVAILABLE.value, "DRAINING")
        so_far = gateway.num_tokens(handle)
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > so_far)
        reason = types_pb2.FINISH_REASON_STOP_STRING
        await gateway.send(finish_choice=pb.FinishChoice(handle=handle, choice=0, reason=reason))
        ended = (await gateway.wait_end(handle)).ended
        assert not ended.HasField("failure")
        assert ended.usage.output_tokens == gateway.num_tokens(handle)
        await gateway.wait_broken()
        await worker.task


@pytest.mark.failure("B137")
async def test_what_does_not_finish_while_draining_ends_with_a_typed_error() -> None:
    async with running_worker(step_ms=20) as worker:
        gateway = HandGateway(worker)
        await gateway.connect()
        handle = await gateway.submit(max_output=1900)
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > 0)
        worker.lifecycle.drain_limit_s = 3.2
        worker.lifecycle.stopping.set()
        failure = (await gateway.wait_end(handle)).ended.failure
        assert (failure.code, failure.reason) == (Code.UNAVAILABLE.value, "DRAINING")
        async with asyncio.timeout(LIMIT_S):
            await worker.task


@pytest.mark.failure("B076")
@pytest.mark.failure("B183")
async def test_a_failed_engine_tells_its_gateways_and_ends_the_process() -> None:
    with pytest.raises(ExceptionGroup) as ended:  # noqa: PT012 - the worker ends by it
        async with running_worker(step_ms=5) as worker:
            gateway = HandGateway(worker)
            await gateway.connect()
            handles = [await gateway.submit(max_output=1900) for _ in range(3)]
            await gateway.wait_for(lambda: all(gateway.num_tokens(handle) for handle in handles))
            worker.faults.crash = True
            for handle in handles:
                failure = (await gateway.wait_end(handle)).ended.failure
                assert (failure.code, failure.reason) == (Code.UNAVAILABLE.value, "WORKER_LOST")
            await asyncio.wait((worker.task,))
    assert ended.group_contains(FatalError, match="the engine failed")


@pytest.mark.failure("B164")
async def test_a_hanging_engine_makes_the_worker_not_ready_until_it_goes_on() -> None:
    async with running_worker(step_ms=2, stuck_after_s=0.3) as worker:
        gateway = HandGateway(worker)
        await gateway.connect()
        worker.faults.running.clear()
        handle = await gateway.submit(max_output=200)
        await until_health(worker, NOT_SERVING)
        await worker.wait_for(lambda status: status.stuck_ms > 300)
        worker.faults.running.set()
        await until_health(worker, SERVING)
        await gateway.wait_end(handle)
        assert gateway.num_tokens(handle) == 200


@pytest.mark.failure("B164")
async def test_an_engine_that_hangs_for_long_ends_the_process_with_typed_errors() -> None:
    with pytest.raises(ExceptionGroup) as ended:  # noqa: PT012 - the worker ends by it
        async with running_worker(step_ms=2, stuck_after_s=0.2, restart_after_s=0.6) as worker:
            gateway = HandGateway(worker)
            await gateway.connect()
            worker.faults.running.clear()
            handle = await gateway.submit(max_output=200)
            assert (await gateway.wait_end(handle)).ended.failure.reason == "WORKER_LOST"
            await asyncio.wait((worker.task,))
    assert ended.group_contains(FatalError, match="hangs")


async def test_a_worker_that_slept_drops_what_it_held_and_is_another_boot() -> None:
    async with running_worker(step_ms=5) as worker:
        gateway = HandGateway(worker)
        old = (await gateway.connect()).peer.epoch
        handle = await gateway.submit(max_output=1900)
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > 0)
        worker.lifecycle.epoch = old + 1
        for callback in worker.lifecycle._on_wake:
            callback(10.0)
        await worker.wait_empty()
        await gateway.wait_broken()
        welcome = await gateway.connect()
        assert (welcome.peer.epoch, welcome.resumed) == (old + 1, False)
        refused = await gateway.wait_end(await gateway.submit(epoch=old))
        assert refused.refused.reason == "STALE_ATTEMPT"


@pytest.mark.parametrize("told_to_stop", [False, True])
async def test_while_the_model_loads_health_answers_not_serving(told_to_stop: bool) -> None:
    may_load = threading.Event()

    def load(config: WorkerConfig) -> Loaded:
        assert may_load.wait(LIMIT_S)
        raise FatalError("damaged")

    config = WorkerConfig(model="sim", executor=ExecutorKind.SIM, port=0, probe_port=0)
    async with asyncio.TaskGroup() as group:
        lifecycle = Lifecycle("worker-0", group)
        worker = Worker(config, lifecycle, load)
        task = group.create_task(ended_as(worker.run()))
        await asyncio.sleep(0)
        async with create_channel(f"127.0.0.1:{worker.port}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            assert (await check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
            call = worker_pb2_grpc.WorkerServiceStub(channel).Connect(iter([pb.ConnectRequest()]))
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
        if told_to_stop:
            lifecycle.stopping.set()
            assert await task is None
            may_load.set()
        else:
            may_load.set()
            assert isinstance(await task, FatalError)


async def ended_as(work: Awaitable[None]) -> FatalError | None:
    try:
        await work
    except FatalError as error:
        return error
    return None
