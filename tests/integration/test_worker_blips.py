"""Gateways that lose their connection, their state or their life, over real gRPC against the sim executor."""

import asyncio
import random

import grpc
import pytest

from protos.types.v1 import types_pb2
from protos.worker.v1 import worker_pb2 as pb
from services.domain.ids import Epoch
from tests.integration.worker_bench import connected, running_worker


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers wait for a gateway's return longer than any machine takes."""
    monkeypatch.setattr("worker.gateways.DEAD_AFTER_S", 60.0)


@pytest.mark.failure("B016")
async def test_gateways_that_vanish_at_random_leave_nothing() -> None:
    draw = random.Random(4)
    async with running_worker(step_ms=2, num_pages=512) as worker:

        async def come_and_go(number: int) -> None:
            gateway = await connected(worker, name=f"gateway-{number}")
            for _ in range(3):
                await gateway.submit(num_prompt=draw.randint(1, 200), max_output=300)
            await asyncio.sleep(draw.random() * 0.3)
            await gateway.drop()

        await asyncio.gather(*(come_and_go(number) for number in range(12)))
        survivor = await connected(worker, name="survivor")
        await survivor.wait_end(await survivor.submit())
        await worker.wait_empty()


@pytest.mark.usefixtures("patient")
async def test_a_blip_loses_and_doubles_nothing() -> None:
    async with running_worker(step_ms=5) as worker:
        gateway = await connected(worker)
        undisturbed = await gateway.submit(max_output=120)
        await gateway.wait_end(undisturbed)
        request = {"prompt_ids": gateway.a_submit(undisturbed).prompt_ids}
        handle = await gateway.submit(max_output=120, **request)
        for _ in range(3):
            so_far = gateway.num_tokens(handle)
            await gateway.wait_for(
                lambda so_far=so_far: gateway.num_tokens(handle) > so_far or "ended" in gateway.kinds(handle)
            )
            await gateway.drop()
            assert (await gateway.connect()).resumed
        await gateway.wait_end(handle)
        assert gateway.tokens[handle, 0] == gateway.tokens[undisturbed, 0]
        assert gateway.positions == list(range(1, len(gateway.positions) + 1))
        assert gateway.kinds(handle).count("ended") == 1


@pytest.mark.usefixtures("patient")
async def test_what_ended_during_a_blip_is_told_after_it() -> None:
    async with running_worker(step_ms=1) as worker:
        gateway = await connected(worker)
        handle = await gateway.submit(max_output=50)
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > 0)
        await gateway.drop()
        await worker.wait_empty()
        assert (await gateway.connect()).resumed
        await gateway.wait_end(handle)
        assert gateway.num_tokens(handle) == 50


async def test_a_submit_said_again_attaches() -> None:
    async with running_worker(step_ms=5) as worker:
        gateway = await connected(worker)
        handle = await gateway.submit(max_output=1900)
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > 5)
        await gateway.send(submit=gateway.a_submit(handle, max_output=1900))
        await gateway.wait_for(lambda: gateway.kinds(handle).count("accepted") == 2)
        await gateway.send(cancel=pb.Cancel(handle=handle))
        usage = (await gateway.wait_end(handle)).ended.usage
        assert gateway.num_tokens(handle) == usage.output_tokens
        assert gateway.kinds(handle).count("ended") == 1


async def test_a_gateway_that_lost_its_state_begins_anew() -> None:
    async with running_worker(step_ms=5) as worker:
        gateway = await connected(worker)
        await gateway.submit(max_output=1900)
        await gateway.drop()
        gateway.worker_epoch = 0
        assert not (await gateway.connect()).resumed
        await worker.wait_empty()


async def test_a_newer_boot_of_a_gateway_ends_the_older_ones_requests() -> None:
    async with running_worker(step_ms=5) as worker:
        old = await connected(worker, epoch=Epoch(5))
        handle = await old.submit(max_output=1900)
        await old.wait_for(lambda: old.num_tokens(handle) > 0)
        new = await connected(worker, epoch=Epoch(6))
        await worker.wait_empty()
        await old.wait_broken()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await old.connect()
        assert refused.value.code() is grpc.StatusCode.ABORTED
        await new.wait_end(await new.submit())


@pytest.mark.slow
async def test_requests_of_a_gateway_that_is_gone_are_cancelled() -> None:
    async with running_worker(step_ms=50) as worker:
        gateway = await connected(worker)
        handle = await gateway.submit(max_output=1900)
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > 0)
        await gateway.drop()
        assert (await worker.status()).running == 1
        await worker.wait_empty()


@pytest.mark.slow
async def test_requests_of_a_silent_gateway_are_cancelled() -> None:
    async with running_worker(step_ms=50) as worker:
        gateway = await connected(worker, confirm=False)
        await gateway.submit(max_output=1900)
        await worker.wait_empty()
        await gateway.wait_broken()


async def test_a_gateway_that_confirms_nothing_is_dropped_instead_of_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.gateways.MAX_UNCONFIRMED", 5)
    async with running_worker(step_ms=20) as worker:
        gateway = await connected(worker, confirm=False)
        await gateway.submit(max_output=1900)
        await gateway.wait_broken()
        await worker.wait_empty()


@pytest.mark.failure("B020")
@pytest.mark.usefixtures("patient")
async def test_random_cancels_limits_and_blips_leave_the_pool_whole() -> None:
    draw = random.Random(9)
    async with running_worker(step_ms=1, num_pages=64, max_sequences=8, max_waiting=1000) as worker:

        async def use(number: int) -> None:
            gateway = await connected(worker, name=f"gateway-{number}")
            handles = []
            for _ in range(60):
                limits = types_pb2.Limits()
                if draw.random() < 0.3:
                    limits.total_ms = draw.randint(1, 50)
                handle = await gateway.submit(
                    num_prompt=draw.randint(1, 150), max_output=draw.randint(1, 40), n=draw.choice((1, 1, 2)),
                    limits=limits,
                )  # fmt: skip
                handles.append(handle)
                if draw.random() < 0.3:
                    await gateway.send(cancel=pb.Cancel(handle=draw.choice(handles)))
                if draw.random() < 0.05:
                    await gateway.drop()
                    assert (await gateway.connect()).resumed
                    for unknown in [one for one in handles if not gateway.kinds(one)]:
                        handles.remove(unknown)  # its Submit may be lost with the connection
                        await gateway.send(cancel=pb.Cancel(handle=unknown))
            for handle in handles:
                await gateway.wait_end(handle)
                assert sum(kind in ("ended", "refused") for kind in gateway.kinds(handle)) == 1

        await asyncio.gather(*(use(number) for number in range(4)))
        await worker.wait_empty()
