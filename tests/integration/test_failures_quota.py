"""Known failures of quotas: limits multiplied by the gateways, and two kinds of limit in one counter."""

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator

import pytest

from gateway.core.auth import Tenant
from gateway.stores.quota import RedisQuota, Reservation, Settlement
from services.chassis.redis import connect
from services.domain.errors import QuotaExceeded
from services.domain.ids import RequestId, TenantId


@pytest.fixture
async def gateways(valkey_url: str) -> AsyncIterator[list[RedisQuota]]:
    """The stores of three gateways over one Redis."""
    connections = [connect(valkey_url, limit_s=5.0) for _ in range(3)]
    yield [RedisQuota(connection) for connection in connections]
    for connection in connections:
        await connection.close()


@pytest.fixture
def tenant() -> Tenant:
    return Tenant(id=TenantId(uuid.uuid4().hex), max_concurrency=30, tokens_per_minute=9000)


def reservation(tenant: Tenant, name: object, num_tokens: int) -> Reservation:
    return Reservation(id=RequestId(str(name)), tenant=tenant, num_choices=1, num_tokens=num_tokens)


async def admits(store: RedisQuota, wanted: Reservation) -> bool:
    try:
        await store.reserve(wanted)
    except QuotaExceeded:
        return False
    return True


@pytest.mark.failure("B123")
@pytest.mark.failure("B124")
@pytest.mark.parametrize(("concurrency", "tokens"), [(6, 9000), (90, 600)], ids=["concurrency", "tokens"])
async def test_three_gateways_admit_together_what_one_would(
    gateways: list[RedisQuota], tenant: Tenant, concurrency: int, tokens: int
) -> None:
    limited = dataclasses.replace(tenant, max_concurrency=concurrency, tokens_per_minute=tokens)
    admitted = await asyncio.gather(
        *(admits(gateways[n % 3], reservation(limited, n, 100)) for n in range(60))
    )
    assert sum(admitted) == 6
    uses = [await store.use(limited) for store in gateways]
    assert {(use.num_leases, use.reserved_tokens) for use in uses} == {(6, 600)}


@pytest.mark.failure("B126")
@pytest.mark.failure("B130")
async def test_either_limit_refuses_by_its_own_name_and_leaves_the_other_alone(
    gateways: list[RedisQuota], tenant: Tenant
) -> None:
    store = gateways[0]
    for n in range(28):
        assert await admits(store, reservation(tenant, n, 300)), "within 95 % of both"
    with pytest.raises(QuotaExceeded) as by_tokens:
        await store.reserve(reservation(tenant, "large", 5000))
    assert by_tokens.value.detail.quota == f"tenant/{tenant.id}/tokens_per_minute"
    assert 0 < (by_tokens.value.detail.retry_after_s or 0) <= 60
    assert (await store.use(tenant)).num_leases == 28
    for n in (28, 29):
        assert await admits(store, reservation(tenant, n, 1))
    before = await store.use(tenant)
    with pytest.raises(QuotaExceeded) as by_concurrency:
        await store.reserve(reservation(tenant, "one more", 1))
    assert by_concurrency.value.detail.quota == f"tenant/{tenant.id}/concurrency"
    assert (await store.use(tenant)).reserved_tokens == before.reserved_tokens == 28 * 300 + 2
    ended = [Settlement(id=RequestId(str(n)), tenant=tenant.id, used_tokens=0, ending=b"") for n in range(30)]
    await store.settle(ended)
    use = await store.use(tenant)
    assert (use.num_leases, use.reserved_tokens, use.left_tokens) == (0, 0, 9000)
