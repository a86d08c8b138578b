"""Every QuotaStore counts what tenants used once per request, by UTC day, key and model."""

import dataclasses
import time

import pytest

from gateway.stores.quota import QuotaStore, Settlement
from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.domain.errors import QuotaExceeded
from services.domain.limits import Account, Limits, Rate
from services.domain.tenant import NANO
from services.domain.usage import KEEP_DAYS, UsageCounts
from tests.fakes.quota_values import a_reservation, a_settlement, an_account

COST = 9_007_199_254_740_993
"""More than a double holds exactly."""


def split(account: Account, key_id: str = "", model: str = "tiny") -> Account:
    return dataclasses.replace(account, key_id=key_id, model=model)


def used(account: Account, name: object, **fields: int) -> Settlement:
    return dataclasses.replace(a_settlement(account, name, 10, 30), **fields)


async def counted(store: QuotaStore, account: Account) -> dict[tuple[str, str], UsageCounts]:
    """Return what was counted on all days around now, by key and model."""
    today = int(time.time() // 86_400)
    found: dict[tuple[str, str], UsageCounts] = {}
    for one in await store.usage(account.organisation, account.tenant, range(today - 2, today + 2)):
        where = (one.key_id, one.model)
        found[where] = found.get(where, UsageCounts()) + one.counts
    return found


@pytest.mark.failure("B132")
async def test_each_settlement_counts_once_whatever_became_of_its_reservation(store: QuotaStore) -> None:
    account = split(an_account())
    await store.reserve(a_reservation(account, "reserved"))
    first = used(account, "reserved", cached_tokens=4, page_ms=1500, cost_nanos=COST)
    unknown = used(account, "unknown", cost_nanos=COST)
    await store.settle([first, first, unknown])
    await store.settle([first, unknown])
    await store.settle([a_settlement(account, "nothing", 0, 0)])
    assert await counted(store, account) == {
        ("", "tiny"): UsageCounts(
            requests=2,
            uncached_tokens=16,
            cached_tokens=4,
            output_tokens=60,
            page_ms=1500,
            cost_nanos=2 * COST,
        )
    }


async def test_keys_models_and_tenants_are_counted_apart(store: QuotaStore) -> None:
    account = an_account()
    sibling = an_account(tenant="sibling", organisation=account.organisation)
    await store.settle(
        [
            used(split(account, "k1"), 1),
            used(split(account, "k2"), 2),
            used(split(account, "k2", "other"), 3),
            used(split(account, "k2", "other"), 4),
            used(split(sibling, "k1"), 5),
        ]
    )
    found = await counted(store, account)
    assert {where: counts.requests for where, counts in found.items()} == {
        ("k1", "tiny"): 1,
        ("k2", "tiny"): 1,
        ("k2", "other"): 2,
    }
    assert list(await counted(store, sibling)) == [("k1", "tiny")]


async def test_the_rest_of_a_cost_is_carried(store: QuotaStore) -> None:
    account = split(an_account())
    for n in range(3):
        await store.settle([used(account, n, cost_nanos=NANO - 1)])
    assert (await counted(store, account))["", "tiny"].cost_nanos == 3 * (NANO - 1)


async def test_refusals_are_counted_by_the_limit_that_is_told(store: QuotaStore) -> None:
    account = split(an_account(Limits(max_concurrency=1)), "k")
    await store.reserve(a_reservation(account, "first"))
    slow = dataclasses.replace(
        split(an_account(Limits(tokens_per_minute=Rate(per_minute=50)), organisation=account.organisation)),
        key_id="k",
    )
    for wanted in (a_reservation(account, 1), a_reservation(account, 2), a_reservation(slow, 3)):
        with pytest.raises(QuotaExceeded):
            await store.reserve(wanted)
    assert await counted(store, account) == {
        ("k", "tiny"): UsageCounts(refusals={"concurrency": 2, "tokens_per_minute": 1})
    }


async def test_a_day_is_kept_so_long_and_not_longer(valkey_url: str) -> None:
    redis = connect(valkey_url, limit_s=20.0)
    account = split(an_account())
    await RedisQuota(redis).settle([used(account, 1)])
    (key,) = await redis.execute("KEYS", f"*{account.organisation}*usage*")
    assert 0 < await redis.execute("PTTL", key) <= KEEP_DAYS * 86_400_000
    await redis.close()
