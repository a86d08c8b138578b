"""Settlements reach the store once it answers; leases of running requests are renewed meanwhile."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.backlog import Backlog
from gateway.settler import Settler
from gateway.stores.journal import Journal
from gateway.stores.quota import Running, ScopeKey, Settlement, Spent
from services.domain.ids import RequestId, TenantId
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import a_reservation, a_running, a_settlement, simple, use_of
from tests.fakes.valkey import eventually

ACCOUNT = simple(1000, 100_000)


def nothing(every: bool) -> list[Running]:
    return []


def nobody(spent: Mapping[ScopeKey, Spent]) -> None:
    pass


@asynccontextmanager
async def running(settler: Settler) -> AsyncIterator[None]:
    task = asyncio.create_task(settler.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.failure("B144")
@pytest.mark.failure("B152")
async def test_settlements_of_an_outage_are_kept_and_settled_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.settler.RETRY_S", 0.01)
    store = MemoryQuota(time.time)
    settler = Settler(store, Backlog("boot"), nothing, nobody)
    for n in range(300):
        await store.reserve(a_reservation(ACCOUNT, n, 0, 10))
    store.is_down = True
    async with running(settler):
        for n in range(300):
            settler.settle(a_settlement(ACCOUNT, n, ending=b"{}"))
        await asyncio.sleep(0)
        assert settler.num_pending == 300
        assert settler.pending_ending(ACCOUNT.tenant, RequestId("7")) == b"{}"
        assert settler.pending_ending(TenantId("other"), RequestId("7")) is None
        store.is_down = False
        async with asyncio.timeout(60):
            await settler.drained()
    use = await use_of(store, ACCOUNT)
    assert (settler.num_pending, use.num_leases, use.reserved_tokens) == (0, 0, 0)


async def test_what_is_kept_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.backlog.MAX_PENDING", 5)
    lost: list[Settlement] = []
    settler = Settler(MemoryQuota(time.time), Backlog("boot"), nothing, nobody, on_lost=lost.append)
    for n in range(8):
        settler.settle(a_settlement(ACCOUNT, n, ending=b"{}"))
    assert (settler.num_pending, [one.id for one in lost]) == (5, ["5", "6", "7"])
    assert settler.pending_ending(ACCOUNT.tenant, RequestId("5")) is None


@pytest.mark.failure("B125")
async def test_leases_of_running_requests_outlive_their_time_also_under_a_flow_of_settlements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.settler.RENEW_EVERY_S", 0.02)
    now, renewed = 1_000.0, asyncio.Event()

    class Renewed(MemoryQuota):
        async def renew(self, running: Sequence[Running]) -> Mapping[ScopeKey, Spent]:
            spent = await super().renew(running)
            renewed.set()
            return spent

    store = Renewed(lambda: now, lease_s=0.1)
    settler = Settler(store, Backlog("boot"), lambda _: [a_running(ACCOUNT, "long")], nobody)
    await store.reserve(a_reservation(ACCOUNT, "long", 0, 10))
    async with running(settler), asyncio.timeout(60):
        for number in range(10):
            renewed.clear()
            while not renewed.is_set():
                settler.settle(a_settlement(ACCOUNT, f"short-{number}"))
                await asyncio.sleep(0.005)
            now += 0.06  # Two such steps would end a lease that is not renewed.
            assert (await use_of(store, ACCOUNT)).num_leases == 1


async def test_what_a_gateway_left_that_is_not_started_again_is_settled_by_one_that_lives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("WATCH_EVERY_S", "LOOK_EVERY_S"):
        monkeypatch.setattr(f"gateway.settler.{name}", 0.01)
    store, journal = MemoryQuota(time.time), Journal(tmp_path, "dying")
    settler = Settler(store, Backlog("living", Journal(tmp_path, "living")), nothing, nobody)
    await store.reserve(a_reservation(ACCOUNT, "left", 0, 40))
    dying = Backlog("dying", journal)
    dying.add(a_settlement(ACCOUNT, "left", 0, 40))
    dying.keep()

    async def is_settled() -> bool:
        use = await use_of(store, ACCOUNT)
        return (use.num_leases, use.day_spent) == (0, 40)

    async with running(settler):
        await settler.drained()
        assert not await is_settled(), "it lives"
        journal.own.close()
        await eventually(is_settled)
