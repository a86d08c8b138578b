"""Settlements reach the store once it answers; leases of running requests are renewed meanwhile."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.core.auth import Tenant
from gateway.settler import Settler
from gateway.stores.quota import Reservation, Settlement
from services.domain.ids import RequestId, TenantId
from tests.fakes.quota_memory import MemoryQuota

TENANT = Tenant(id=TenantId("acme"), max_concurrency=1000, tokens_per_minute=100_000)


@asynccontextmanager
async def running(settler: Settler) -> AsyncIterator[None]:
    task = asyncio.create_task(settler.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def reserve(store: MemoryQuota, request_id: str) -> None:
    await store.reserve(Reservation(id=RequestId(request_id), tenant=TENANT, num_choices=1, num_tokens=10))


def a_settlement(request_id: str) -> Settlement:
    return Settlement(id=RequestId(request_id), tenant=TENANT.id, used_tokens=1, ending=b"{}")


@pytest.mark.failure("B144")
@pytest.mark.failure("B152")
async def test_settlements_of_an_outage_are_kept_and_settled_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.settler.RETRY_S", 0.01)
    store = MemoryQuota(time.monotonic)
    settler = Settler(store, dict)
    for n in range(300):
        await reserve(store, str(n))
    store.is_down = True
    async with running(settler):
        for n in range(300):
            settler.settle(a_settlement(str(n)))
        await asyncio.sleep(0)
        assert settler.num_pending == 300
        assert settler.pending_ending(TENANT.id, RequestId("7")) == b"{}"
        assert settler.pending_ending(TenantId("other"), RequestId("7")) is None
        store.is_down = False
        async with asyncio.timeout(5):
            await settler.drained()
    use = await store.use(TENANT)
    assert (settler.num_pending, use.num_leases, use.reserved_tokens) == (0, 0, 0)


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.settler.MAX_PENDING", 5)
    settler = Settler(MemoryQuota(time.monotonic), dict)
    for n in range(8):
        settler.settle(a_settlement(str(n)))
    assert (settler.num_pending, settler.num_dropped) == (5, 3)
    assert settler.pending_ending(TENANT.id, RequestId("2")) is None


@pytest.mark.failure("B125")
async def test_leases_of_running_requests_outlive_their_time_also_under_a_flow_of_settlements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.settler.RENEW_EVERY_S", 0.02)
    store = MemoryQuota(time.monotonic, lease_s=0.1)
    settler = Settler(store, lambda: {TENANT.id: [RequestId("long")]})
    await reserve(store, "long")
    async with running(settler):
        until = time.monotonic() + 0.4
        while time.monotonic() < until:
            settler.settle(a_settlement(f"short-{time.monotonic()}"))
            await asyncio.sleep(0.005)
            assert (await store.use(TENANT)).num_leases == 1
