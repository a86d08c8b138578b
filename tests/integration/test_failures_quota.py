"""Known failures of quotas: limits multiplied by the gateways, and two kinds of limit in one counter."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count

import pytest

from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.domain.errors import QuotaExceeded
from services.domain.limits import Account, Limits, Rate
from tests.fakes.quota_values import (
    a_reservation,
    a_settlement,
    admits,
    an_account,
    held_by,
    simple,
    use_of,
)


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


async def first_refusal(store: RedisQuota, account: Account) -> QuotaExceeded:
    """Ask for one token more until there is none: a minute may have passed."""
    for n in count():
        try:
            await store.reserve(a_reservation(account, f"late-{n}", 1, 0))
        except QuotaExceeded as error:
            return error
    raise AssertionError


@pytest.mark.failure("B124")
@pytest.mark.failure("B130")
async def test_requests_a_minute_are_counted_over_all_gateways_and_apart_from_their_tokens(
    gateways: list[RedisQuota],
) -> None:
    # One more of each a minute: nothing that could be missed or doubled by a slow machine.
    requests, tokens = Rate(per_minute=1, burst=30), Rate(per_minute=1, burst=3000)
    account = an_account(Limits(requests_per_minute=requests, tokens_per_minute=tokens))
    began = time.monotonic()
    admitted = await asyncio.gather(
        *(admits(gateways[n % 3], a_reservation(account, n, 5, 90)) for n in range(90))
    )
    more = int((time.monotonic() - began) / 60) + 1
    assert 30 <= sum(admitted) <= 30 + more, "95 % of the tokens are taken, and all of the requests"
    by_requests = await first_refusal(gateways[0], account)
    assert by_requests.detail.quota == "tenant/team/requests_per_minute"
    assert 0 < (by_requests.detail.retry_after_s or 0) <= 60
    # Whoever used nothing was no request: what it took of either comes back, and then tokens are what lacks.
    await gateways[1].settle([a_settlement(account, n, 0, 0) for n, got in enumerate(admitted) if got][:5])
    with pytest.raises(QuotaExceeded) as by_tokens:
        await gateways[2].reserve(a_reservation(account, "large", 5, 2900))
    assert by_tokens.value.detail.quota == "tenant/team/tokens_per_minute"


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
