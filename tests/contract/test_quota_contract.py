"""One suite for every QuotaStore: admitted atomically, settled exactly once, nothing left behind."""

import asyncio
import dataclasses
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.auth import Tenant
from gateway.stores.quota import QuotaStore, RedisQuota, Reservation, Settlement
from services.chassis.redis import connect
from services.domain.errors import DuplicateKey, QuotaExceeded, StaleAttempt
from services.domain.ids import RequestId, TenantId
from tests.fakes.quota_memory import MemoryQuota

LEASE_S = 0.2


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[QuotaStore]:
    if request.param == "memory":
        yield MemoryQuota(time.monotonic, lease_s=LEASE_S)
        return
    redis = connect(request.getfixturevalue("valkey_url"), limit_s=2.0)
    yield RedisQuota(redis, lease_s=LEASE_S)
    await redis.close()


@pytest.fixture
def tenant() -> Tenant:
    return Tenant(id=TenantId(uuid.uuid4().hex), max_concurrency=100, tokens_per_minute=1000)


def a_reservation(tenant: Tenant, name: str = "r", **changes: Any) -> Reservation:
    reservation = Reservation(id=RequestId(name), tenant=tenant, num_choices=1, num_tokens=100)
    return dataclasses.replace(reservation, **changes)


def a_settlement(tenant: Tenant, name: str = "r", used: int = 40, **changes: Any) -> Settlement:
    settlement = Settlement(id=RequestId(name), tenant=tenant.id, used_tokens=used, ending=b"")
    return dataclasses.replace(settlement, **changes)


async def reserve_many(store: QuotaStore, reservations: list[Reservation]) -> list[RequestId]:
    """Reserve all at once; return the ids admitted."""

    async def one(reservation: Reservation) -> RequestId | None:
        try:
            await store.reserve(reservation)
        except QuotaExceeded:
            return None
        return reservation.id

    admitted = await asyncio.gather(*map(one, reservations))
    return [request_id for request_id in admitted if request_id is not None]


@pytest.mark.failure("B123")
async def test_concurrent_calls_are_admitted_up_to_the_bucket_and_settling_frees_the_rest(
    store: QuotaStore, tenant: Tenant
) -> None:
    admitted = await reserve_many(store, [a_reservation(tenant, str(n)) for n in range(50)])
    assert len(admitted) == 10
    with pytest.raises(QuotaExceeded) as caught:
        await store.reserve(a_reservation(tenant, "late"))
    assert 0 < (caught.value.detail.retry_after_s or 0) <= 60
    assert caught.value.detail.quota == f"tenant/{tenant.id}/tokens_per_minute"
    await store.settle([a_settlement(tenant, name) for name in admitted])
    assert len(await reserve_many(store, [a_reservation(tenant, f"b{n}") for n in range(50)])) == 6


@pytest.mark.failure("B010")
@pytest.mark.failure("B126")
async def test_a_group_is_admitted_whole_or_not_at_all(store: QuotaStore, tenant: Tenant) -> None:
    small = dataclasses.replace(tenant, max_concurrency=4)
    await store.reserve(a_reservation(small, "one"))
    before = await store.use(small)
    with pytest.raises(QuotaExceeded, match="1 of 4"):
        await store.reserve(a_reservation(small, "four", num_choices=4))
    after = await store.use(small)
    assert (
        (after.num_leases, after.reserved_tokens) == (before.num_leases, before.reserved_tokens) == (1, 100)
    )
    await store.reserve(a_reservation(small, "three", num_choices=3))
    assert (await store.use(small)).num_leases == 4


async def test_a_request_above_the_whole_bucket_gets_no_retry_hint(store: QuotaStore, tenant: Tenant) -> None:
    with pytest.raises(QuotaExceeded) as caught:
        await store.reserve(a_reservation(tenant, num_tokens=1001))
    assert caught.value.detail.retry_after_s is None
    assert caught.value.detail.metadata["limit"] == "1000"


@pytest.mark.failure("B132")
async def test_reserving_and_settling_twice_counts_once(store: QuotaStore, tenant: Tenant) -> None:
    await store.reserve(a_reservation(tenant))
    await store.reserve(a_reservation(tenant))
    assert await store.use(tenant) == dataclasses.replace(
        await store.use(tenant), num_leases=1, reserved_tokens=100
    )
    await store.settle([a_settlement(tenant), a_settlement(tenant)])
    await store.settle([a_settlement(tenant, used=0)])
    use = await store.use(tenant)
    assert (use.num_leases, use.reserved_tokens) == (0, 0)
    assert 960 <= use.left_tokens <= 985


async def test_settling_before_reserving_leaves_a_tombstone(store: QuotaStore, tenant: Tenant) -> None:
    await store.settle([a_settlement(tenant, used=0)])
    with pytest.raises(StaleAttempt):
        await store.reserve(a_reservation(tenant))
    assert (await store.use(tenant)).num_leases == 0


@pytest.mark.failure("B125")
async def test_an_expired_lease_frees_its_slot_and_is_still_settled_once(
    store: QuotaStore, tenant: Tenant
) -> None:
    single = dataclasses.replace(tenant, max_concurrency=1)
    await store.reserve(a_reservation(single, "dead"))
    deadline = time.monotonic() + 5
    while True:
        try:
            await store.reserve(a_reservation(single, "next"))
            break
        except QuotaExceeded:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
    await store.settle([a_settlement(single, "dead", used=0), a_settlement(single, "next", used=0)])
    use = await store.use(single)
    assert (use.num_leases, use.reserved_tokens, use.left_tokens) == (0, 0, 1000)


@pytest.mark.failure("B125")
async def test_renewed_leases_live_on(store: QuotaStore, tenant: Tenant) -> None:
    await store.reserve(a_reservation(tenant, num_choices=2))
    until = time.monotonic() + 3 * LEASE_S
    while time.monotonic() < until:
        await store.renew({tenant.id: [RequestId("r"), RequestId("unknown")]})
        assert (await store.use(tenant)).num_leases == 2
        await asyncio.sleep(LEASE_S / 4)


async def test_an_idempotency_key_is_charged_once(store: QuotaStore, tenant: Tenant) -> None:
    await store.reserve(a_reservation(tenant, "first", idempotency_key="k"))
    with pytest.raises(DuplicateKey) as caught:
        await store.reserve(a_reservation(tenant, "second", idempotency_key="k"))
    assert caught.value.detail.metadata["request_id"] == "first"
    await store.settle([a_settlement(tenant, "first", idempotency_key="k")])
    with pytest.raises(DuplicateKey):
        await store.reserve(a_reservation(tenant, "third", idempotency_key="k"))
    await store.reserve(a_reservation(tenant, "fourth", idempotency_key="other"))


async def test_an_idempotency_key_of_a_request_that_cost_nothing_is_free_again(
    store: QuotaStore, tenant: Tenant
) -> None:
    await store.reserve(a_reservation(tenant, "first", idempotency_key="k"))
    await store.settle([a_settlement(tenant, "first", used=0, idempotency_key="k")])
    await store.reserve(a_reservation(tenant, "second", idempotency_key="k"))


async def test_endings_are_kept_for_their_own_tenant(store: QuotaStore, tenant: Tenant) -> None:
    await store.reserve(a_reservation(tenant))
    await store.settle([a_settlement(tenant, ending=b"{}")])
    await store.settle([a_settlement(tenant, ending=b"other")])
    assert await store.ending(tenant.id, RequestId("r")) == b"{}"
    assert await store.ending(TenantId("other"), RequestId("r")) is None
    assert await store.ending(tenant.id, RequestId("x")) is None


@pytest.mark.failure("B125")
@pytest.mark.failure("B132")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["reserve", "settle", "renew"]), st.integers(0, 5), st.integers(1, 4)),
        max_size=30,
    )
)
def test_in_any_order_nothing_is_left_and_nothing_is_charged_twice(
    valkey_url: str, operations: list[tuple[str, int, int]]
) -> None:
    async def play() -> None:
        redis = connect(valkey_url, limit_s=2.0)
        tenant = Tenant(id=TenantId(uuid.uuid4().hex), max_concurrency=8, tokens_per_minute=600)
        for store in (RedisQuota(redis), MemoryQuota(time.monotonic)):
            for name, which, size in operations:
                request_id = str(which)
                if name == "reserve":
                    try:
                        await store.reserve(
                            a_reservation(tenant, request_id, num_choices=size, num_tokens=50 * size)
                        )
                    except (QuotaExceeded, StaleAttempt):
                        continue
                elif name == "settle":
                    await store.settle([a_settlement(tenant, request_id, used=10)])
                else:
                    await store.renew({tenant.id: [RequestId(request_id)]})
                use = await store.use(tenant)
                assert 0 <= use.num_leases <= 8
                assert use.left_tokens <= 600
            await store.settle([a_settlement(tenant, str(n), used=0) for n in range(6)])
            use = await store.use(tenant)
            assert (use.num_leases, use.reserved_tokens) == (0, 0)
        await redis.close()

    asyncio.run(play())


@pytest.mark.failure("B147")
@pytest.mark.failure("B148")
async def test_the_script_survives_a_flush_and_every_key_expires(valkey_url: str, tenant: Tenant) -> None:
    redis = connect(valkey_url, limit_s=2.0)
    store = RedisQuota(redis)
    await store.reserve(a_reservation(tenant, "a", idempotency_key="k"))
    await redis.execute("SCRIPT", "FLUSH")
    bucket = f"quire:quota:{{{tenant.id}}}:bucket"
    await redis.execute("PERSIST", bucket)
    await store.reserve(a_reservation(tenant, "b"))
    await store.settle([a_settlement(tenant, "a", ending=b"{}")])
    keys = await redis.execute("KEYS", f"*{tenant.id}*")
    assert len(keys) >= 5
    for key in keys:
        assert await redis.execute("PTTL", key) > 0, key
    await redis.close()
