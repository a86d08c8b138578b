"""The worker's link to its scheduler, against a scripted one over real gRPC."""

import asyncio

import pytest

from protos.scheduler.v1 import scheduler_pb2 as sched
from services.chassis.grpc import is_serving
from tests.fakes.worker_peers import ScriptedScheduler, scripted
from tests.integration.worker_bench import HandGateway, running_worker


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
        await scheduler.wait_for(
            lambda: (scheduler.last.granted, scheduler.last.placements_seen) == (window + 5, 5)
        )

        def uses() -> list[tuple[str, int, int]]:
            said = [report.tenant_use for report in scheduler.reports if report.tenant_use]
            return [(use.tenant, use.uncached_tokens, use.output_tokens) for use in said[-1]]

        await scheduler.wait_for(lambda: uses() == [("local", 100, 50)])
        assert [report.seq for report in scheduler.reports] == list(range(1, len(scheduler.reports) + 1))


@pytest.mark.failure("B011")
async def test_a_placement_that_nobody_submits_gives_its_credit_back() -> None:
    scheduler = ScriptedScheduler()
    scheduler.submit_within_ms = 100
    async with scripted(scheduler) as address, running_worker(scheduler=address) as worker:
        await scheduler.wait_for(lambda: scheduler.last.granted)
        window = scheduler.last.granted
        scheduler.send(placed=sched.Placed(highest_seq=2))
        await scheduler.wait_for(
            lambda: (scheduler.last.granted, scheduler.last.placements_seen) == (window + 2, 2)
        )
        scheduler.send(placed=sched.Placed(highest_seq=3, abandoned=[3]))
        await scheduler.wait_for(lambda: scheduler.last.granted == window + 3)
        gateway = HandGateway(worker)
        await gateway.connect()
        for seq in (2, 3):
            late = await gateway.wait_end(await gateway.submit(**placed(scheduler, seq)))
            assert late.refused.reason == "STALE_ATTEMPT"
        bad = await gateway.wait_end(await gateway.submit(tenant="", **placed(scheduler, 4)))
        assert bad.refused.reason == "INVALID_FIELD"
        await scheduler.wait_for(
            lambda: (scheduler.last.granted, scheduler.last.placements_seen) == (window + 4, 4)
        )


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
    async with scripted(scheduler) as address, running_worker(scheduler=address, step_ms=20) as worker:
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
        await scheduler.wait_for(lambda: len(scheduler.hellos) > 1)
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
        async with asyncio.timeout(60):
            while await is_serving(worker.channel):  # noqa: ASYNC110 - it is another process, as it were
                await asyncio.sleep(0.05)
        refused = await gateway.wait_end(await gateway.submit(**placed(scheduler, 2)))
        assert refused.refused.reason == "DRAINING"
        await gateway.wait_end(handle)
        assert gateway.num_tokens(handle) == 60
