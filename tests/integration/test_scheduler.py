"""The scheduler over real gRPC, with gateways, workers and a kvmanager that play their parts."""

from collections.abc import AsyncIterator

import pytest

from protos.kvmanager.v1 import kvmanager_pb2_grpc
from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.types.v1 import types_pb2
from scheduler.config import BandConfig
from scheduler.core.fair_queue import FairPolicy
from services.chassis.grpc import bind, create_server
from services.domain.degradation import Step
from services.rpc.fleet_status import queue_and_tenants, queue_status
from tests.fakes.scheduler_peers import FakeGateway, FakeKvManager, FakeWorker, pb_acquire
from tests.integration.running_scheduler import Running, eventually, placements, scheduler


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with scheduler() as one:
        yield one


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
    bands = (BandConfig(name="live"), BandConfig(name="night", floor=0.1, target_ms=1))
    async with scheduler(bands=bands, degrade_after_ms=0) as running:
        worker = await FakeWorker(running.channel).connect(granted=0)
        worker.report(startable_pages=0, free_pages=0)
        gateway = await FakeGateway(running.channel).connect()
        gateway.acquire(pb_acquire("a"))
        await gateway.until(lambda g: any(model.steps for told in g.heard["models"] for model in told.models))
        status = await queue_status(f"127.0.0.1:{running.port}")
        assert status is not None
        assert {one.partition(":")[0] for one in status.degraded} == {"m/night"}
        assert [list(told.bands) for told in gateway.heard["welcome"]] == [["live", "night"]]
        value, labels = running.metrics.registry.get_sample_value, {"model": "m", "band": "night"}
        await eventually(lambda: bool(value("quire_degradation_step", labels)))
        gateway.acquire(pb_acquire("b", band=3))
        await gateway.until(lambda g: bool(g.heard["rejected"]))
        assert "a rank from 1 to 2, got 3" in gateway.heard["rejected"][0].failure.message


async def test_gateways_status_and_metrics_hear_of_a_tenant_that_degrades_alone() -> None:
    bands = (BandConfig(name="live"), BandConfig(name="night", floor=0.1, target_ms=1))
    async with scheduler(bands=bands, degrade_after_ms=0) as running:
        await FakeWorker(running.channel).connect(granted=0)
        gateway = await FakeGateway(running.channel).connect()
        gateway.acquire(pb_acquire("a", tenant="floods"))
        await gateway.until(lambda g: bool(g.heard["tenant_steps"]))
        first = gateway.heard["tenant_steps"][0].steps[0]
        assert (first.model, first.band, first.tenant, first.step) == ("m", 2, "floods", 1)
        answer = await queue_and_tenants(f"127.0.0.1:{running.port}")
        assert answer is not None
        status, tenants = answer
        assert [one.partition(" up to ")[0] for one in status.degraded] == ["m/night: 1 by themselves,"]
        assert [(one.tenant, one.degraded[0].partition(":")[0]) for one in tenants] == [("floods", "m")]
        late = await FakeGateway(running.channel, "gateway-1").connect()
        await late.until(lambda g: bool(g.heard["tenant_steps"]))
        assert late.heard["tenant_steps"][0].steps[0].tenant == "floods"

        def num_degraded() -> float:
            value = running.metrics.registry.get_sample_value
            labels = ({"model": "m", "band": "night", "step": step.name.lower()} for step in Step)
            return sum(value("quire_degraded_tenants", one) or 0.0 for one in labels)

        await eventually(lambda: num_degraded() == 1)
        gateway.abandon(pb_acquire("a").key)


async def test_what_waits_for_a_band_that_is_gone_is_served_in_the_last() -> None:
    async with scheduler(bands=(BandConfig(name="live"), BandConfig(name="night", floor=0.1))) as running:
        await FakeWorker(running.channel).connect(granted=1)
        gateway = await FakeGateway(running.channel).connect(waiting=[pb_acquire("a", band=3)])
        await gateway.until(placements(1))
        assert gateway.heard["placement"][0].key.request_id == "a"


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
