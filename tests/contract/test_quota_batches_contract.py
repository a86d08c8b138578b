"""A batch of settlements is made once, however late it comes again."""

from gateway.stores.quota import Batch, QuotaStore
from gateway.stores.quota_redis import RedisQuota
from services.domain.limits import Account
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import a_settlement, simple, use_of


async def forget_ids(store: QuotaStore, account: Account) -> None:
    """Make a store forget the ids that have ended, as it does by itself after `REMEMBER_S`."""
    if isinstance(store, RedisQuota):
        prefix = f"quire:quota:{{{account.organisation}}}"
        await store._redis.execute("DEL", f"{prefix}:ended", f"{prefix}:reservations")
        return
    assert isinstance(store, MemoryQuota)
    store._organisations[account.organisation].ended.clear()


async def test_a_batch_is_made_once_also_after_its_ids_are_forgotten(store: QuotaStore) -> None:
    account = simple()
    first = Batch("boot", 1, [a_settlement(account, "a")])
    await store.settle_batch(first)
    await store.settle_batch(Batch("boot", 2, [a_settlement(account, "b")]))
    charged = (await use_of(store, account)).day_spent
    await forget_ids(store, account)
    await store.settle([a_settlement(account, "a")])
    again = (await use_of(store, account)).day_spent
    assert again == charged + 40, "the id was forgotten: the control"
    await forget_ids(store, account)
    await store.settle_batch(first)
    assert (await use_of(store, account)).day_spent == again
    await store.settle_batch(Batch("another boot", 1, [a_settlement(account, "c")]))
    assert (await use_of(store, account)).day_spent == again + 40


async def test_a_batch_over_several_organisations_is_made_once_in_each(store: QuotaStore) -> None:
    one, other = simple(), simple()
    await store.settle_batch(Batch("boot", 1, [a_settlement(one, "a")]))
    both = Batch("boot", 2, [a_settlement(one, "b"), a_settlement(other, "c"), a_settlement(one, "d")])
    await store.settle_batch(both)
    for account in (one, other):
        await forget_ids(store, account)
    await store.settle_batch(both)
    assert [(await use_of(store, account)).day_spent for account in (one, other)] == [120, 40]
