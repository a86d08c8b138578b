"""Known failures of quotas: limits multiplied by the gateways, and two kinds of limit in one counter."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.domain.errors import QuotaExceeded
from tests.fakes.quota_values import a_reservation, a_settlement, admits, held_by, simple, use_of


@pytest.fixture
async def gateways(valkey_url: str) -> AsyncIterator[list[RedisQuota]]:
    """The stores of three gateways over one Redis."""
    connections = [connect(valkey_url, limit_s=20.0) for _ in range(3)]
    yield [RedisQuota(connection) for connection in connections]
    for connection in connections:
        await connection.close()


@pytest.mark.failure("B123")
@pytest.mark.failure("B124")
@pytest.mark.parametrize(("concurrency", "tokens"), [(6, 9000), (90, 600)], ids=["concurrency", "tokens"])
async def test_three_gateways_admit_together_what_one_would(
    gateways: list[RedisQuota], concurrency: int, tokens: int
) -> None:
    limited = simple(concurrency, tokens)
    admitted = await asyncio.gather(*(admits(gateways[n % 3], a_reservation(limited, n)) for n in range(60)))
    assert sum(admitted) == 6
    uses = [await use_of(store, limited) for store in gateways]
    assert held_by(uses) == [(6, 600)] * 3


@pytest.mark.failure("B126")
@pytest.mark.failure("B130")
async def test_either_limit_refuses_by_its_own_name_and_leaves_the_other_alone(
    gateways: list[RedisQuota],
) -> None:
    store, account = gateways[0], simple(30, 9000)
    for n in range(28):
        assert await admits(store, a_reservation(account, n, output=290)), "within 95 % of both"
    with pytest.raises(QuotaExceeded) as by_tokens:
        await store.reserve(a_reservation(account, "large", output=4990))
    assert by_tokens.value.detail.quota == "tenant/team/tokens_per_minute"
    assert 0 < (by_tokens.value.detail.retry_after_s or 0) <= 60
    assert (await use_of(store, account)).num_leases == 28
    for n in (28, 29):
        assert await admits(store, a_reservation(account, n, 0, 1))
    before = await use_of(store, account)
    with pytest.raises(QuotaExceeded) as by_concurrency:
        await store.reserve(a_reservation(account, "one more", 0, 1))
    assert by_concurrency.value.detail.quota == "tenant/team/concurrency"
    assert (await use_of(store, account)).reserved_tokens == before.reserved_tokens == 28 * 300 + 2
    await store.settle([a_settlement(account, n, 0, 0) for n in range(30)])
    use = await use_of(store, account)
    assert (use.num_leases, use.reserved_tokens, use.left_tokens) == (0, 0, 9000)
