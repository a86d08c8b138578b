"""One suite for every TenantLog: all or nothing, in order, against the newest state only."""

import asyncio
import time

import pytest

from gateway.core.directory import Stored, TenantDirectory
from gateway.stores.tenants import (
    AUDIT_KEY,
    MAX_ENTRIES,
    RedisTenantLog,
    TenantLog,
)
from services.chassis.redis import RedisStore, connect
from services.domain.errors import DependencyDown, StaleChange
from services.domain.tenant_keys import KV_CAPS_KEY
from tests.fakes.tenant_changes import DIGEST, a_key, a_tenant, commit


async def test_what_was_committed_is_loaded_with_its_version(log: TenantLog) -> None:
    assert await log.load() == Stored()
    await commit(log, a_tenant("a", {"id": "a", "weight": 2.5}), a_key("k", "a"))
    stored = await log.load()
    assert stored.version == 2
    assert stored.store
    assert stored.tenants == {"a": {"id": "a", "weight": 2.5}}
    assert stored.keys == {"k": {"id": "k", "tenant": "a", "digest": DIGEST}}
    await commit(log, a_tenant("a", None, {"id": "a"}), a_key("k", "a", gone=True))
    emptied = await log.load()
    assert (emptied.version, emptied.tenants, emptied.keys) == (4, {}, {})
    assert emptied.store == stored.store


async def test_a_change_from_an_older_state_changes_nothing(log: TenantLog) -> None:
    await log.commit([a_tenant("a", {"id": "a"})], who="x", store="", version=0, mark="")
    with pytest.raises(StaleChange):
        await log.commit([a_tenant("b", {"id": "b"})], who="x", store="", version=0, mark="")
    assert set((await log.load()).tenants) == {"a"}
    assert len(await log.audit()) == 1


async def test_of_racing_changes_of_one_state_one_wins(log: TenantLog) -> None:
    state = await log.load()

    async def one(number: int) -> bool:
        try:
            change = a_tenant(f"t{number}", {"id": f"t{number}"})
            await log.commit([change], who="x", store=state.store, version=state.version, mark=state.mark)
        except StaleChange:
            return False
        return True

    assert sum(await asyncio.gather(*map(one, range(8)))) == 1
    assert len((await log.load()).tenants) == 1


async def test_every_change_is_in_the_audit_with_who_when_before_and_after(log: TenantLog) -> None:
    begin = time.time()
    await commit(log, a_tenant("a", {"id": "a"}), who="acme/k1")
    await commit(log, a_tenant("a", {"id": "a", "weight": 2.0}, {"id": "a"}), who="acme/k2")
    newest, oldest = await log.audit()
    assert (newest.version, newest.who, newest.change.before, newest.change.after) == (
        2,
        "acme/k2",
        {"id": "a"},
        {"id": "a", "weight": 2.0},
    )
    assert (oldest.version, oldest.who, oldest.change.before) == (1, "acme/k1", None)
    assert begin - 2 < oldest.at <= newest.at < time.time() + 2
    assert [one.version for one in await log.audit(before=2)] == [1]
    assert [one.version for one in await log.audit(limit=1)] == [2]


async def test_a_reader_that_follows_the_changes_is_where_one_that_loads_is(log: TenantLog) -> None:
    follower = TenantDirectory()
    for step in range(3):
        await commit(log, a_tenant("a", {"id": "a", "weight": step + 1.0}), a_key(f"k{step}", "a"))
        if step == 1:
            await commit(log, a_key("k0", "a", gone=True))
        changes = await log.since(follower.store, follower.version, follower.mark)
        if changes is None:
            follower.replace(await log.load())
        else:
            follower.apply(changes)
    loaded = TenantDirectory()
    loaded.replace(await log.load())
    assert follower.version == loaded.version == 7
    assert list(follower.book) == list(loaded.book)
    assert follower.keys == loaded.keys
    assert set(follower.keys) == {"k1", "k2"}
    assert await log.since(follower.store, follower.version, follower.mark) == []
    assert await log.since("another store", 0, "") is None


async def test_last_use_is_kept_until_the_key_is_gone(log: TenantLog) -> None:
    await commit(log, a_key("k", "a"))
    await log.note_use({})
    await log.note_use({"k": 1_000.4, "other": 5.0})
    await log.note_use({"k": 2_000.0})
    assert await log.last_used(["k", "never"]) == {"k": 2_000.0}
    assert await log.last_used([]) == {}
    await commit(log, a_key("k", "a", gone=True))
    assert await log.last_used(["k"]) == {}


async def test_more_changes_than_one_call_reads_come_all(log: TenantLog) -> None:
    changes = [a_tenant("a", {"id": "a", "weight": n + 1.0}) for n in range(MAX_ENTRIES + 20)]
    made = await log.commit(changes, who="x", store="", version=0, mark="")
    stored = await log.load()
    assert [one.version for one in made] == list(range(1, MAX_ENTRIES + 21))
    assert await log.since(stored.store, 0, "") == made
    assert await log.since(stored.store, 7, made[6].mark) == made[7:]


async def test_redis_a_trimmed_audit_makes_readers_load_anew(redis: RedisStore) -> None:
    log = RedisTenantLog(redis)
    await commit(log, a_tenant("a", {"id": "a"}), a_tenant("b", {"id": "b"}), a_tenant("c", {"id": "c"}))
    stored = await log.load()
    await redis.execute("XTRIM", AUDIT_KEY, "MAXLEN", 2)
    assert await log.since(stored.store, 1, stored.mark) is None
    assert [one.version for one in await log.since(stored.store, 2, stored.mark) or ()] == [3]
    await redis.execute("DEL", AUDIT_KEY)
    assert await log.since(stored.store, 2, stored.mark) is None
    assert await log.since(stored.store, 3, stored.mark) == []


async def test_redis_page_caps_are_written_with_the_change(redis: RedisStore) -> None:
    log = RedisTenantLog(redis)
    await log.commit([a_tenant("a", {"id": "a"})], who="x", store="", version=0, mark="", kv_caps='{"a":5}')
    assert await redis.execute("GET", KV_CAPS_KEY) == b'{"a":5}'
    await commit(log, a_tenant("b", {"id": "b"}))
    assert await redis.execute("GET", KV_CAPS_KEY) == b'{"a":5}'


async def test_redis_that_does_not_answer_is_a_dependency_that_is_down() -> None:
    redis = connect("redis://127.0.0.1:1/0", limit_s=0.2)
    with pytest.raises(DependencyDown):
        await RedisTenantLog(redis).load()
    await redis.close()
