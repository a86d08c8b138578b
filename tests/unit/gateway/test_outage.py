"""What a tenant passes its limits by is its allowance, whatever of it the store is told meanwhile."""

import asyncio

import pytest

from gateway.core.limit_status import LimitStatus
from gateway.core.used_keys import UsedKeys
from gateway.outage import OutagePolicy
from gateway.stores.quota import Batch, Reservation
from services.domain.errors import DependencyDown, DuplicateKey, QuotaExceeded
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account, Allowance, Limits, Rate
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import a_reservation, a_running, a_settlement, an_account

ALLOWANCE = Allowance(max_concurrency=2, tokens=300)


class SlowQuota(MemoryQuota):
    """Takes what is renewed and settled, and answers no reservation in time while it is slow."""

    is_slow = True

    async def reserve(self, reservation: Reservation) -> LimitStatus:
        if self.is_slow:
            raise DependencyDown("too slow")
        return await super().reserve(reservation)


async def known(store: SlowQuota, *limits: Limits) -> Account:
    """Return an account whose limits the store has met, as it has those of any tenant before an outage."""
    account = an_account(*limits, allowance=ALLOWANCE)
    store.is_slow = False
    await store.reserve(a_reservation(account, "before"))
    await store.settle([a_settlement(account, "before", 0, 0)])
    store.is_slow = True
    return account


async def tried(policy: OutagePolicy, account: Account, num: int, *, prefix: str = "") -> list[str]:
    """Try to reserve 100 tokens `num` times; settle each admitted one as used in full; return their names."""
    admitted = []
    for number in range(num):
        name = f"{prefix}{number}"
        try:
            await policy.reserve(a_reservation(account, name))
        except DependencyDown:
            continue
        admitted.append(name)
        settlement = a_settlement(account, name, 10, 90)
        policy.ended(settlement)
        await policy.settle_batch(Batch(prefix or "boot", len(admitted), [settlement]))
    return admitted


async def test_a_store_that_is_told_of_all_but_never_asked_frees_no_tokens() -> None:
    store = SlowQuota(lambda: 1000.0)
    policy = OutagePolicy(store)
    account = await known(store, Limits(tokens_per_minute=Rate(per_minute=300)))
    assert len(await tried(policy, account, 20)) == 3
    assert [use.left_tokens for use in await store.use(account)] == [0]


async def test_a_renewal_frees_no_slot() -> None:
    store = SlowQuota(lambda: 1000.0)
    policy = OutagePolicy(store)
    account = an_account(Limits(max_concurrency=2), allowance=ALLOWANCE)
    for name in range(2):
        await policy.reserve(a_reservation(account, name))
        await policy.renew([a_running(account, name)])
    with pytest.raises(DependencyDown, match="3 of 2 sequences"):
        await policy.reserve(a_reservation(account, 2))


async def test_the_allowance_is_free_again_only_once_the_store_admits_the_tenant() -> None:
    now = [1000.0]
    store = SlowQuota(lambda: now[0])
    policy = OutagePolicy(store)
    account = await known(store, Limits(tokens_per_minute=Rate(per_minute=300)))
    other = an_account(organisation=account.organisation, tenant="other")
    assert len(await tried(policy, account, 9, prefix="first")) == 3
    store.is_slow = False
    with pytest.raises(QuotaExceeded):
        await policy.reserve(a_reservation(account, "over"))
    await policy.reserve(a_reservation(other, "another's"))
    store.is_slow = True
    assert await tried(policy, account, 9, prefix="second") == [], "a store that comes and goes gives nothing"
    now[0] += 60.0
    store.is_slow = False
    await policy.reserve(a_reservation(account, "within"))
    store.is_slow = True
    assert len(await tried(policy, account, 9, prefix="third")) == 3


async def test_what_the_store_is_told_while_it_decides_is_not_taken_for_decided() -> None:
    class Told(SlowQuota):
        async def reserve(self, reservation: Reservation) -> LimitStatus:
            status = await super().reserve(reservation)
            await policy.settle([a_settlement(account, "granted", 10, 90)])
            return status

    store = Told(lambda: 1000.0)
    policy = OutagePolicy(store)
    account = an_account(allowance=ALLOWANCE)
    await policy.reserve(a_reservation(account, "granted"))
    store.is_slow = False
    await policy.reserve(a_reservation(account, "early"))
    assert policy.num_granted == 1
    await policy.reserve(a_reservation(account, "late"))
    assert policy.num_granted == 0


async def test_what_used_nothing_is_not_kept() -> None:
    store = SlowQuota(lambda: 1000.0)
    policy = OutagePolicy(store)
    account = an_account(allowance=ALLOWANCE)
    for name in range(50):
        await policy.reserve(a_reservation(account, name))
        await policy.settle([a_settlement(account, name, 0, 0)])
    assert policy.num_granted == 0


async def refused_for(policy: OutagePolicy, reservation: Reservation) -> str:
    """Return the id of the request that a key belongs to."""
    with pytest.raises(DuplicateKey) as caught:
        await policy.reserve(reservation)
    return caught.value.detail.metadata["request_id"]


async def test_a_key_serves_once_while_the_store_is_away() -> None:
    now = [1000.0]
    store = SlowQuota(lambda: now[0])
    policy = OutagePolicy(store, clock=lambda: now[0])
    account = an_account(allowance=Allowance(max_concurrency=9, tokens=9000))
    await policy.reserve(a_reservation(account, "first", key="k"))
    assert await refused_for(policy, a_reservation(account, "second", key="k")) == "first"
    policy.ended(a_settlement(account, "first", 10, 90, key="k"))
    assert await refused_for(policy, a_reservation(account, "third", key="k")) == "first"
    await policy.reserve(a_reservation(account, "another", key="other"))
    now[0] += 600.0
    await policy.reserve(a_reservation(account, "late", key="k"))


async def test_a_key_serves_once_however_the_store_goes_and_comes() -> None:
    class Forgets(SlowQuota):
        is_empty = False

        async def reserve(self, reservation: Reservation) -> LimitStatus:
            if self.is_empty:
                return await MemoryQuota(lambda: 1000.0).reserve(reservation)
            return await super().reserve(reservation)

    account = an_account(allowance=ALLOWANCE)
    store = Forgets(lambda: 1000.0)
    store.is_slow = False
    policy = OutagePolicy(store)
    await policy.reserve(a_reservation(account, "first", key="k"))
    await policy.settle([a_settlement(account, "first", 10, 90, key="k")])
    store.is_slow = True
    assert await refused_for(policy, a_reservation(account, "second", key="k")) == "first"
    store.is_empty = True
    assert await refused_for(policy, a_reservation(account, "third", key="k")) == "first"


async def test_of_two_with_one_key_that_wait_for_the_store_one_is_granted() -> None:
    class Waits(SlowQuota):
        may_fail = asyncio.Event()

        async def reserve(self, reservation: Reservation) -> LimitStatus:
            await self.may_fail.wait()
            return await super().reserve(reservation)

    store = Waits(lambda: 1000.0)
    policy = OutagePolicy(store)
    account = an_account(allowance=ALLOWANCE)
    both = [asyncio.create_task(policy.reserve(a_reservation(account, name, key="k"))) for name in "ab"]
    await asyncio.sleep(0)
    store.may_fail.set()
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(first, LimitStatus)
    assert isinstance(second, DuplicateKey)


async def test_a_key_of_what_was_refused_or_cost_nothing_is_free_again() -> None:
    store = SlowQuota(lambda: 1000.0)
    policy = OutagePolicy(store)
    refused, allowed = an_account(), an_account(allowance=ALLOWANCE)
    for name in range(2):
        with pytest.raises(DependencyDown):
            await policy.reserve(a_reservation(refused, name, key="k"))
    for name in range(2):
        await policy.reserve(a_reservation(allowed, name, key="k"))
        policy.ended(a_settlement(allowed, name, 0, 0, key="k"))


def test_the_oldest_keys_are_forgotten_first() -> None:
    keys = UsedKeys(600.0, most=2)
    for number in range(3):
        keys.claim(TenantId("t"), str(number), RequestId(str(number)), now=0.0)
    assert len(keys) == 2
    assert keys.claim(TenantId("t"), "2", RequestId("again"), now=599.0) == "2"
    assert keys.claim(TenantId("t"), "2", RequestId("again"), now=600.0) == "again"
