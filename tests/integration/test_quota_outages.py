"""Outages of a real store: each tenant's declared policy holds, nothing hangs, and all heals by itself."""

import asyncio
import contextlib
import itertools
from pathlib import Path

import pytest

from gateway.outage import OutagePolicy
from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import RedisStore, connect
from services.domain.errors import DependencyDown, DuplicateKey, QuotaExceeded
from services.domain.limits import Allowance, Budget, Limits
from tests.fakes.quota_values import a_reservation, a_running, a_settlement, an_account, use_of
from tests.fakes.valkey import Valkey, eventually
from tests.unit.chassis.test_chassis_redis import Proxy

REFUSES = an_account(Limits())
ALLOWS = an_account(Limits(), allowance=Allowance(max_concurrency=3, tokens=350))


async def granted(store: OutagePolicy, names: range) -> list[int]:
    """Try to reserve 100 tokens for each name; return those admitted."""
    admitted = []
    for name in names:
        with contextlib.suppress(DependencyDown):
            await store.reserve(a_reservation(ALLOWS, name))
            admitted.append(name)
    return admitted


async def answers(redis: RedisStore) -> bool:
    try:
        await redis.execute("PING")
    except DependencyDown:
        return False
    return True


@pytest.mark.failure("B147")
@pytest.mark.failure("B152")
@pytest.mark.parametrize("trouble", ["down", "read-only", "no replicas"])
async def test_without_the_store_a_tenant_gets_its_allowance_and_no_more(
    tmp_path: Path, trouble: str
) -> None:
    valkey = Valkey(tmp_path)
    await valkey.start()
    redis, admin = connect(valkey.url, limit_s=20.0), connect(valkey.url, limit_s=20.0)
    store = OutagePolicy(RedisQuota(redis))
    await store.reserve(a_reservation(ALLOWS, "before"))
    if trouble == "down":
        await valkey.stop()
    elif trouble == "read-only":
        await admin.execute("REPLICAOF", "127.0.0.1", "1")
    else:
        await admin.execute("CONFIG", "SET", "min-replicas-to-write", "1")
    with pytest.raises(DependencyDown, match="redis does not answer"):
        await store.reserve(a_reservation(REFUSES))
    assert await granted(store, range(10)) == [0, 1, 2]
    # One ended with less than its worst case: its slot is free, and its tokens count as used.
    store.ended(a_settlement(ALLOWS, 0, output=30))
    assert await granted(store, range(10, 20)) == [10]
    if trouble == "down":
        await valkey.start()
    elif trouble == "read-only":
        await admin.execute("REPLICAOF", "NO", "ONE")
    else:
        await admin.execute("CONFIG", "SET", "min-replicas-to-write", "0")
    await eventually(lambda: answers(redis))
    await store.renew([a_running(ALLOWS, name) for name in (1, 2, 10)])
    await store.settle([a_settlement(ALLOWS, 0, output=30)])
    await store.settle([a_settlement(ALLOWS, 0, output=30)])
    use = await use_of(store, ALLOWS)
    assert (store.num_granted, use.day_spent) == (4, 40)
    assert use.num_leases == (3 if trouble == "down" else 4), "an empty store learns of what runs"
    await store.reserve(a_reservation(ALLOWS, "after"))
    assert store.num_granted == 0, "the store knows of all and has room"
    await store.settle([a_settlement(ALLOWS, name, 0, 0) for name in ("before", 1, 2, 10, "after")])
    use = await use_of(store, ALLOWS)
    assert (use.num_leases, use.reserved_tokens, use.day_charged) == (0, 0, 40)
    await asyncio.gather(redis.close(), admin.close())
    await valkey.stop()


@pytest.mark.failure("B152")
async def test_a_key_that_was_used_during_an_outage_is_known_to_others_after_it(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path)
    redis, other = connect(valkey.url, limit_s=20.0), connect(valkey.url, limit_s=20.0)
    first, second = OutagePolicy(RedisQuota(redis)), OutagePolicy(RedisQuota(other))
    for name in ("runs", "ended"):
        await first.reserve(a_reservation(ALLOWS, name, key=name))
    assert first.is_ahead
    await valkey.start()
    await eventually(lambda: answers(redis))
    await eventually(lambda: answers(other))
    await first.renew([a_running(ALLOWS, "runs", key="runs")])
    await first.settle([a_settlement(ALLOWS, "ended", key="ended")])
    assert not first.is_ahead
    for key in ("runs", "ended"):
        with pytest.raises(DuplicateKey):
            await second.reserve(a_reservation(ALLOWS, "again", key=key))
    await asyncio.gather(redis.close(), other.close())
    await valkey.stop()


@pytest.mark.failure("B152")
async def test_a_store_too_slow_for_reservations_gives_no_allowance_twice(valkey_url: str) -> None:
    account = an_account(Limits(), allowance=Allowance(max_concurrency=1, tokens=100))
    async with Proxy(int(valkey_url.rsplit(":", 1)[1].split("/")[0])).running() as proxy:
        redis = connect(f"redis://127.0.0.1:{proxy.port}/0", limit_s=0.05)
        background = connect(valkey_url, limit_s=20.0)
        store = OutagePolicy(RedisQuota(redis, background))
        proxy.may_answer.clear()
        await store.reserve(a_reservation(account, "granted"))
        await store.renew([a_running(account, "granted")])
        for name in range(3):
            with pytest.raises(DependencyDown, match="without it is used up: 2 of 1 sequences"):
                await store.reserve(a_reservation(account, name))
            await store.settle([a_settlement(account, name, 0, 0)])
        await store.settle([a_settlement(account, "granted")])
        with pytest.raises(DependencyDown, match="without it is used up"):
            await store.reserve(a_reservation(account, 3))
        await store.settle([a_settlement(account, 3, 0, 0)])
        proxy.may_answer.set()
        names = itertools.count(4)

        async def admits() -> bool:
            name = next(names)
            with contextlib.suppress(DependencyDown):
                await store.reserve(a_reservation(account, name))
                return True
            await store.settle([a_settlement(account, name, 0, 0)])
            return False

        await eventually(admits)
        assert store.num_granted == 0
        use = await use_of(RedisQuota(background), account)
        assert (use.num_leases, use.day_spent) == (1, 40), "each counts once, however late it was reserved"
        await asyncio.gather(redis.close(), background.close())


@pytest.mark.parametrize("is_copied", [True, False])
async def test_a_primary_that_moved_goes_on_where_the_old_one_was(
    tmp_path: Path, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.stores.quota_redis.BACKGROUND_LIMIT_S", 20.0)
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    old, new = map(Valkey, folders)
    await old.start()
    await new.start()
    promoted = connect(new.url, limit_s=20.0)
    account = an_account(Limits(daily=Budget(tokens=150)))
    async with Proxy(old.port).running() as proxy:
        # One address, as a service name or a load balancer gives it.
        redis = connect(f"redis://127.0.0.1:{proxy.port}/0", limit_s=20.0)
        store = OutagePolicy(RedisQuota(redis, lease_s=3600.0))
        await store.reserve(a_reservation(account, "before", 50, 50))
        if is_copied:
            await promoted.execute("REPLICAOF", "127.0.0.1", str(old.port))

            async def has_all() -> bool:
                with contextlib.suppress(DependencyDown):  # It loads.
                    return int(await promoted.execute("DBSIZE")) > 0
                return False

            await eventually(has_all)
        await old.stop()
        if is_copied:
            await promoted.execute("REPLICAOF", "NO", "ONE")
        proxy.move_to(new.port)
        await eventually(lambda: answers(redis))
        # The control: a primary that was no copy knows nothing, and begins anew.
        if is_copied:
            with pytest.raises(QuotaExceeded):
                await store.reserve(a_reservation(account, "after", 50, 50))
        await store.settle([a_settlement(account, "before", 50, 30)])
        await store.settle([a_settlement(account, "before", 50, 30)])
        await store.reserve(a_reservation(account, "after", 35, 35))
        use = await use_of(store, account)
        assert (use.num_leases, use.day_spent) == (1, 80), "charged once, wherever it was reserved"
        await redis.close()
    await promoted.close()
    await new.stop()
