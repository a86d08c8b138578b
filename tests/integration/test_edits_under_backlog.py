"""A live edit at the admin door reaches what waits in the scheduler already.

A gateway, a scheduler and a Redis over real gRPC; nothing arrives after the edit. Each is run once more
without the gateway's word to the scheduler, as its control.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from gateway import tenant_feed
from gateway.stores import tenants as tenant_store
from protos.types.v1 import types_pb2
from scheduler.core.fair_queue import FairPolicy, as_vtc
from scheduler.core.share_queue import FairRules
from scheduler.core.tenant_table import TenantRow
from services.chassis.redis import connect
from services.domain.generation import Band, RequestClass
from services.rpc import tenant_admin
from services.rpc.tenant_admin import TenantAdminClient
from tests.fakes.admin_rig import AdminRig, admin_rig
from tests.fakes.gateway_rig import ADMIN_KEY, generate
from tests.fakes.held_ticks import EFFECTIVE_WITHIN_S, REST_S, HeldTicks
from tests.fakes.scheduler_peers import FakeWorker
from tests.fakes.tenant_changes import a_tenant, commit
from tests.fakes.valkey import Valkey
from tests.integration.running_scheduler import Running, scheduler

LIMIT_S = 60.0
"""For failures only."""
WITH_AND_WITHOUT = pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])


@dataclass
class Backlog:
    """Tenants x and y, whose requests wait for a worker that takes none yet."""

    admin: AdminRig
    running: Running
    seat: FakeWorker
    client: TenantAdminClient
    url: str
    """Of the Redis."""
    tasks: list["asyncio.Task[object]"] = field(default_factory=list)

    async def ask(self, tenant: str, count: int, **document: object) -> None:
        """Let `count` requests of a new tenant wait."""
        await self.client.create({"id": tenant, **document})
        secret = (await self.client.create_key(tenant)).secret
        bearer = (("authorization", f"Bearer {secret}"),)
        calls = (generate(self.admin.rig, metadata=bearer, max_output_tokens=1) for _ in range(count))
        self.tasks += map(asyncio.create_task, calls)
        await self.until(lambda: len(self.running.dispatcher.core.room) == len(self.tasks))

    async def edit(self, is_on: bool, seen: Callable[[], object], **change: object) -> None:
        """Edit x; wait until the scheduler has `seen` it, unless the gateway is to keep it to itself."""
        if not is_on:
            self.admin.rig.parts.scheduler.edited = lambda: None  # type: ignore[method-assign]
        await self.client.update({"id": "x", **change}, list(change), etag="")
        if is_on:
            await self.until(seen)

    async def served(self, count: int) -> list[Any]:
        """Let the worker take `count` requests; return them as they were submitted."""
        self.seat.report(granted=count)
        submits = self.admin.rig.worker.submits
        await self.until(lambda: len(submits) == count)
        return submits

    async def until(self, holds: Callable[[], object]) -> None:
        await self.admin.rig.until(holds, LIMIT_S)

    def row(self) -> TenantRow:
        return next(row for row in self.running.dispatcher.core.room.tenants if row.tenant == "x")

    def waiting(self, band: Band, kind: RequestClass = RequestClass.SHORT) -> int:
        return self.running.dispatcher.core.room.sizes.get((band, kind, "tiny"), 0)


@pytest.fixture
async def backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backlog]:
    # A machine that is short of time is no outage of the store.
    monkeypatch.setattr(tenant_store, "LIMIT_S", LIMIT_S)
    monkeypatch.setattr(tenant_admin, "LIMIT_S", LIMIT_S)
    valkey = Valkey(tmp_path)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(valkey.stop)
        await valkey.start()
        running = await stack.enter_async_context(
            scheduler(new_policy=lambda: FairPolicy(as_vtc(FairRules())))
        )
        admin = await stack.enter_async_context(
            admin_rig(valkey.url, scheduler_port=running.port, waits=False)
        )
        worker = admin.rig.worker
        seat = FakeWorker(running.channel, worker.name, worker.epoch, model="tiny")
        await seat.connect(granted=0, address=f"127.0.0.1:{worker.port}")
        await admin.rig.until(lambda: admin.rig.parts.is_ready)
        one = Backlog(admin, running, seat, TenantAdminClient(admin.channel, ADMIN_KEY), valkey.url)
        yield one
        for task in one.tasks:
            task.cancel()
        await asyncio.gather(*one.tasks, return_exceptions=True)


def tenants_of(submits: list[Any]) -> Counter[str]:
    return Counter(submit.tenant for submit in submits)


@WITH_AND_WITHOUT
async def test_a_new_weight_is_how_a_backlog_is_served(backlog: Backlog, is_on: bool) -> None:
    await backlog.ask("x", 20)
    await backlog.ask("y", 20)
    await backlog.edit(is_on, lambda: backlog.row().weight == 4, weight=4)
    shares = tenants_of(await backlog.served(20))
    assert shares["x"] == pytest.approx(16 if is_on else 10, abs=1)


@WITH_AND_WITHOUT
async def test_a_backlog_goes_into_its_tenants_new_band(backlog: Backlog, is_on: bool) -> None:
    await backlog.ask("x", 10, band="batch")
    await backlog.ask("y", 10)
    await backlog.edit(is_on, lambda: backlog.waiting(Band.INTERACTIVE) == 10, band="interactive")
    submits = await backlog.served(10)
    shares = tenants_of(submits)
    # Each lower band has its floor.
    assert shares["x"] >= 8 if is_on else shares["x"] <= 2
    rank = types_pb2.BAND_INTERACTIVE if is_on else types_pb2.BAND_BATCH
    assert {cast(int, submit.band) for submit in submits if submit.tenant == "x"} <= {rank}


@WITH_AND_WITHOUT
async def test_a_backlog_becomes_of_the_class_that_its_tenants_threshold_makes_it(
    backlog: Backlog, is_on: bool
) -> None:
    await backlog.ask("x", 5)
    await backlog.edit(
        is_on, lambda: backlog.waiting(Band.STANDARD, RequestClass.LONG) == 5, long_from_tokens=1
    )
    assert backlog.waiting(Band.STANDARD, RequestClass.LONG) == (5 if is_on else 0)
    assert len(await backlog.served(5)) == 5


async def test_an_edit_at_another_gateway_is_the_schedulers_after_one_tick_within_a_second(
    backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = HeldTicks()
    monkeypatch.setattr(tenant_feed, "next_tick", ticks.next_tick)
    await backlog.ask("x", 2)
    await backlog.until(lambda: ticks.periods)
    redis = connect(backlog.url, limit_s=LIMIT_S)
    await commit(tenant_store.RedisTenantLog(redis), a_tenant("x", {"id": "x", "weight": 4}))
    await redis.close()
    assert backlog.row().weight == 1
    ticks.let_one_go()
    await backlog.until(lambda: backlog.row().weight == 4)
    assert ticks.periods[0] + REST_S <= EFFECTIVE_WITHIN_S
