"""One suite for every QuotaStore: admitted atomically, settled exactly once, nothing left behind."""

import asyncio
import dataclasses
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.stores.quota import LEASE_S, Batch, QuotaStore, Reservation
from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.domain.errors import QuotaExceeded, StaleAttempt
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account, Limits, Rate
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import (
    a_reservation,
    a_running,
    a_settlement,
    admits,
    an_account,
    simple,
    use_of,
)
from tests.fakes.valkey import eventually

SHORT_S = 0.2
"""Of leases that are to end."""


def refilled_since(began: float) -> float:
    """Return what 1,000 tokens a minute bring in the meantime."""
    return (time.monotonic() - began) * 1000 / 60


async def reserve_many(store: QuotaStore, reservations: list[Reservation]) -> list[RequestId]:
    """Reserve all at once; return the ids admitted."""
    admitted = await asyncio.gather(*(admits(store, one) for one in reservations))
    return [one.id for one, is_in in zip(reservations, admitted, strict=True) if is_in]


def with_long_leases(store: QuotaStore) -> QuotaStore:
    """Return a store with the same counters whose leases do not end during a test."""
    if isinstance(store, RedisQuota):
        return RedisQuota(store._redis)
    assert isinstance(store, MemoryQuota)
    store.lease_s = LEASE_S
    return store


@pytest.mark.failure("B123")
async def test_concurrent_calls_are_admitted_up_to_the_bucket_and_settling_frees_the_rest(
    store: QuotaStore,
) -> None:
    slow = Rate(per_minute=60, burst=1000)
    account = an_account(Limits(max_concurrency=100, tokens_per_minute=slow))
    admitted = await reserve_many(store, [a_reservation(account, n) for n in range(50)])
    assert len(admitted) == 10
    with pytest.raises(QuotaExceeded) as caught:
        await store.reserve(a_reservation(account, "late"))
    assert 0 < (caught.value.detail.retry_after_s or 0) <= 100
    assert caught.value.detail.quota == "tenant/team/tokens_per_minute"
    await store.settle([a_settlement(account, name) for name in admitted])
    assert len(await reserve_many(store, [a_reservation(account, f"b{n}") for n in range(50)])) == 6


@pytest.mark.failure("B010")
@pytest.mark.failure("B126")
async def test_a_group_is_admitted_whole_or_not_at_all(store: QuotaStore) -> None:
    small = simple(concurrency=4)
    await store.reserve(a_reservation(small, "one"))
    with pytest.raises(QuotaExceeded, match=r"tenant/team: 1 of 4 concurrent sequences .* 4 more"):
        await store.reserve(a_reservation(small, "four", n=4))
    use = await use_of(store, small)
    assert (use.num_leases, use.reserved_tokens) == (1, 100)
    await store.reserve(a_reservation(small, "three", n=3))
    assert (await use_of(store, small)).num_leases == 4


async def test_a_request_above_the_whole_bucket_gets_no_retry_hint(
    store: QuotaStore, account: Account
) -> None:
    with pytest.raises(QuotaExceeded, match="more than it allows at once") as caught:
        await store.reserve(a_reservation(account, output=991))
    assert caught.value.detail.retry_after_s is None
    assert caught.value.detail.metadata["limit"] == "1000"


@pytest.mark.failure("B132")
async def test_reserving_and_settling_twice_counts_once(store: QuotaStore, account: Account) -> None:
    began = time.monotonic()
    await store.reserve(a_reservation(account))
    await store.reserve(a_reservation(account))
    use = await use_of(store, account)
    assert (use.num_leases, use.reserved_tokens, use.day_charged) == (1, 100, 100)
    await store.settle([a_settlement(account), a_settlement(account)])
    await store.settle([a_settlement(account, prompt=0, output=0)])
    use = await use_of(store, account)
    assert (use.num_leases, use.reserved_tokens) == (0, 0)
    assert (use.day_charged, use.day_spent, use.month_charged, use.month_spent) == (40, 40, 40, 40)
    assert 960 <= (use.left_tokens or 0) <= 980 + refilled_since(began)


async def test_what_was_refilled_meanwhile_is_not_charged_again_by_settling(store: QuotaStore) -> None:
    account = simple(tokens=60_000_000)
    await store.reserve(a_reservation(account))

    async def is_full() -> bool:
        return (await use_of(store, account)).left_tokens == 60_000_000

    await eventually(is_full)
    await store.settle([a_settlement(account, output=90)])
    assert (await use_of(store, account)).left_tokens == 60_000_000


async def test_settling_before_reserving_leaves_a_tombstone(store: QuotaStore, account: Account) -> None:
    await store.settle([a_settlement(account, prompt=0, output=0)])
    with pytest.raises(StaleAttempt):
        await store.reserve(a_reservation(account))
    use = await use_of(store, account)
    assert (use.num_leases, use.left_tokens, use.day_charged) == (0, 1000, 0)


@pytest.mark.failure("B125")
@pytest.mark.parametrize("lease_s", [SHORT_S])
async def test_what_a_dead_gateway_reserved_comes_back_and_is_charged_if_it_settles_after_all(
    store: QuotaStore,
) -> None:
    single = simple(concurrency=1)
    began = time.monotonic()
    await store.reserve(a_reservation(single, "dead"))
    await store.renew([a_running(single, "dead", used=50)])

    async def is_free() -> bool:
        return await admits(store, a_reservation(single, "next"))

    await eventually(is_free)
    await store.settle([a_settlement(single, "next", 0, 0)])
    use = await use_of(store, single)
    assert (use.num_leases, use.reserved_tokens, use.left_tokens) == (0, 0, 1000)
    assert (use.day_charged, use.day_spent) == (0, 0)
    with pytest.raises(StaleAttempt):
        await store.reserve(a_reservation(single, "dead"))
    await store.settle([a_settlement(single, "dead"), a_settlement(single, "dead")])
    use = await use_of(store, single)
    assert (use.day_charged, use.day_spent, use.num_leases) == (40, 40, 0)
    assert 960 <= (use.left_tokens or 0) <= 980 + refilled_since(began)


async def test_what_the_store_never_heard_of_is_charged_once(store: QuotaStore, account: Account) -> None:
    await store.settle([a_settlement(account, output=1490)])
    await store.settle([a_settlement(account, output=1490)])
    use = await use_of(store, account)
    assert (use.day_spent, use.num_leases) == (1500, 0)
    # A bucket that nothing was taken from yet is not known to the store; from now on it is.
    assert await admits(store, a_reservation(account, "next"))
    await store.settle([a_settlement(account, "other", output=1490)])
    with pytest.raises(QuotaExceeded):
        await store.reserve(a_reservation(account, "refused"))


@pytest.mark.failure("B125")
@pytest.mark.parametrize("lease_s", [SHORT_S])
async def test_renewed_leases_live_on_and_a_lost_one_is_held_again(
    store: QuotaStore, account: Account
) -> None:
    await store.reserve(a_reservation(account, n=2))
    await store.reserve(a_reservation(account, "not renewed"))
    store = with_long_leases(store)
    await store.renew([a_running(account, n=2)])

    async def only_the_renewed_one_is_left() -> bool:
        return (await use_of(store, account)).num_leases == 2

    await eventually(only_the_renewed_one_is_left)
    await store.renew([a_running(account, n=2), a_running(account, "lost")])
    use = await use_of(store, account)
    assert (use.num_leases, use.reserved_tokens) == (3, 200)
    await store.settle([a_settlement(account)])
    await store.renew([a_running(account, n=2)])
    assert (await use_of(store, account)).num_leases == 1


async def test_endings_are_kept_for_their_own_tenant(store: QuotaStore, account: Account) -> None:
    await store.reserve(a_reservation(account))
    await store.settle([a_settlement(account, ending=b"{}")])
    await store.settle([a_settlement(account, ending=b"other")])
    organisation = account.organisation
    assert await store.ending(organisation, account.tenant, RequestId("r")) == b"{}"
    assert await store.ending(organisation, TenantId("other"), RequestId("r")) is None
    assert await store.ending(organisation, account.tenant, RequestId("x")) is None


@pytest.mark.failure("B125")
@pytest.mark.failure("B132")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["reserve", "settle", "renew"]), st.integers(0, 5), st.integers(1, 4)),
        max_size=30,
    )
)
def test_in_any_order_nothing_is_left_and_both_stores_count_the_same(
    valkey_url: str, operations: list[tuple[str, int, int]]
) -> None:
    async def play(store: QuotaStore, account: Account) -> list[tuple[object, ...]]:
        seen: list[tuple[object, ...]] = []
        for name, which, size in operations:
            outcome = "done"
            if name == "reserve":
                try:
                    await store.reserve(a_reservation(account, which, output=50 * size, n=size))
                except (QuotaExceeded, StaleAttempt) as refusal:
                    outcome = f"{refusal.reason} {refusal.detail.quota}"
            elif name == "settle":
                await store.settle([a_settlement(account, which, output=size)])
            else:
                running = a_running(account, which, used=size)
                await store.renew([dataclasses.replace(running)])
            use = await use_of(store, account)
            assert (use.left_tokens or 0) <= 600
            seen.append((outcome, use.num_leases, use.reserved_tokens, use.day_charged, use.day_spent))
        await store.settle([a_settlement(account, n, 0, 0) for n in range(6)])
        use = await use_of(store, account)
        assert (use.num_leases, use.reserved_tokens) == (0, 0)
        assert use.day_charged == use.day_spent
        return seen

    # So little is refilled that a slow run admits no more than a quick one.
    limits = Limits(max_concurrency=8, tokens_per_minute=Rate(per_minute=1, burst=600))

    async def both() -> None:
        redis, account = connect(valkey_url, limit_s=20.0), an_account(limits)
        assert await play(RedisQuota(redis), account) == await play(MemoryQuota(time.time), account)
        await redis.close()

    asyncio.run(both())


@pytest.mark.failure("B147")
@pytest.mark.failure("B148")
async def test_the_script_survives_a_flush_and_every_key_expires(valkey_url: str, account: Account) -> None:
    redis = connect(valkey_url, limit_s=20.0)
    store = RedisQuota(redis)
    await store.reserve(a_reservation(account, "a", key="k"))
    await redis.execute("SCRIPT", "FLUSH")
    await redis.execute("PERSIST", f"quire:quota:{{{account.organisation}}}:counters")
    await store.reserve(a_reservation(account, "b"))
    await store.settle_batch(Batch("boot", 1, [a_settlement(account, "a", ending=b"{}")]))
    keys = await redis.execute("KEYS", f"*{account.organisation}*")
    assert len(keys) >= 6
    for key in keys:
        assert b"{%b}" % account.organisation.encode() in key, key
        assert await redis.execute("PTTL", key) > 0, key
    await redis.close()
