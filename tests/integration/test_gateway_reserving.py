"""The quota is reserved while the scheduler looks for a place: neither is kept when the other fails."""

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from gateway.core.auth import LOCAL_TENANT
from gateway.core.limit_status import LimitStatus
from gateway.stores.quota import Reservation
from services.chassis.errors import from_rpc_error
from services.domain.errors import DependencyDown, DuplicateKey, NoWorker, QuotaExceeded, ServeError
from tests.fakes.gateway_rig import (
    ACME,
    ACME_CONCURRENCY,
    ACME_KEY,
    ACME_TOKENS,
    Rig,
    a_request,
    account_of,
    gateway_rig,
    generate,
    nothing_is_held,
    use_by,
)
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import a_reservation
from tests.fakes.worker_server import endless


class GatedQuota(MemoryQuota):
    """Answers no reservation before `gate` is set."""

    def __init__(self) -> None:
        super().__init__(time.time)
        self.gate = asyncio.Event()
        self.num_asked = 0

    async def reserve(self, reservation: Reservation) -> LimitStatus:
        self.num_asked += 1
        await self.gate.wait()
        return await super().reserve(reservation)


@pytest.fixture
async def quota() -> GatedQuota:
    return GatedQuota()


@pytest.fixture
async def rig(quota: GatedQuota) -> AsyncIterator[Rig]:
    async with gateway_rig(quota=quota) as started:
        yield started


async def failure_of(answer: "asyncio.Task[object]") -> ServeError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer
    return from_rpc_error(caught.value)


async def placed(rig: Rig) -> "asyncio.Task[object]":
    """Begin a call of tenant acme and wait until its placement has come."""
    task: asyncio.Task[object] = asyncio.create_task(generate(rig, metadata=ACME_KEY))
    await rig.until(lambda: rig.scheduler.acquired)
    await rig.until(lambda: [one for one in rig.parts.table.all() if one.attempts.placement is not None])
    return task


async def test_a_place_is_used_only_once_the_quota_is_reserved(rig: Rig, quota: GatedQuota) -> None:
    task = await placed(rig)
    assert (quota.num_asked, rig.worker.submits) == (1, [])
    quota.gate.set()
    await task
    assert len(rig.worker.submits) == 1
    assert rig.scheduler.abandoned == []
    await nothing_is_held(rig)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_refused_reservation_gives_its_place_back(rig: Rig, quota: GatedQuota, waits: bool) -> None:
    rig.scheduler.holds = waits
    full = a_reservation(account_of(ACME), "full", n=ACME_CONCURRENCY)
    await MemoryQuota.reserve(quota, full)
    if waits:
        task: asyncio.Task[object] = asyncio.create_task(generate(rig, metadata=ACME_KEY))
        await rig.until(lambda: rig.scheduler.waiting)
    else:
        task = await placed(rig)
    quota.gate.set()
    assert type(await failure_of(task)) is QuotaExceeded
    await rig.until(lambda: rig.scheduler.abandoned)
    assert [one.HasField("seq") for one in rig.scheduler.abandoned] == [not waits]
    assert rig.worker.submits == []
    await rig.settled()
    assert (await use_by(quota, ACME)).num_leases == ACME_CONCURRENCY


async def test_a_refused_request_gives_its_reservation_back(rig: Rig, quota: GatedQuota) -> None:
    rig.scheduler.rejects = NoWorker("none")
    task: asyncio.Task[object] = asyncio.create_task(generate(rig, metadata=ACME_KEY))
    await rig.until(lambda: [one for one in rig.parts.table.all() if one.error is not None])
    quota.gate.set()
    assert type(await failure_of(task)) is NoWorker
    await nothing_is_held(rig)
    assert (await use_by(quota, ACME)).left_tokens == ACME_TOKENS


async def test_a_caller_that_leaves_meanwhile_leaves_nothing_behind(rig: Rig, quota: GatedQuota) -> None:
    call = rig.stub.Generate(a_request(), metadata=ACME_KEY)
    await rig.until(lambda: [one for one in rig.parts.table.all() if one.attempts.placement is not None])
    call.cancel()
    await rig.until(lambda: rig.scheduler.abandoned)
    assert rig.scheduler.abandoned[0].HasField("seq")
    quota.gate.set()
    await nothing_is_held(rig)
    assert rig.worker.submits == []


async def test_a_tenant_that_was_refused_costs_the_scheduler_nothing_more(
    rig: Rig, quota: GatedQuota
) -> None:
    quota.gate.set()
    quota.is_down = True
    for _ in range(5):
        task: asyncio.Task[object] = asyncio.create_task(generate(rig, metadata=ACME_KEY))
        assert type(await failure_of(task)) is DependencyDown
    assert len(rig.scheduler.acquired) == 1
    quota.is_down = False
    await generate(rig, metadata=ACME_KEY)
    assert len(rig.scheduler.acquired) == 2
    await nothing_is_held(rig)


async def test_what_runs_under_a_key_that_the_store_never_saw_is_told_to_it_as_soon_as_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.settler.RENEW_EVERY_S", 3600.0)
    monkeypatch.setattr("gateway.settler.WATCH_EVERY_S", 0.01)
    quota = MemoryQuota(time.time)
    async with gateway_rig(quota=quota) as rig:
        rig.worker.script, rig.worker.step_s = endless, 0.5
        quota.is_down = True
        call = rig.stub.Generate(a_request(idempotency_key="k", max_output_tokens=2000))
        await call.read()
        assert rig.parts.outages.is_ahead
        quota.is_down = False
        await rig.until(lambda: not rig.parts.outages.is_ahead)
        with pytest.raises(DuplicateKey):
            await quota.reserve(a_reservation(account_of(LOCAL_TENANT), "elsewhere", key="k"))
        call.cancel()
        await nothing_is_held(rig)
