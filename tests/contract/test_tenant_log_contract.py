"""One suite for every TenantLog: all or nothing, in order, against the newest state only."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.core.directory import Change, Document, Kind, Stored, TenantDirectory
from gateway.stores.tenants import (
    AUDIT_KEY,
    KEYS_KEY,
    MAX_ENTRIES,
    TENANTS_KEY,
    USED_KEY,
    RedisTenantLog,
    TenantLog,
)
from gateway.tenant_feed import Edit, TenantFeed
from services.chassis.redis import RedisStore, connect
from services.domain.errors import DependencyDown, StaleChange
from services.domain.ids import TenantId
from services.domain.tenant import Tenant
from services.domain.tenant_keys import HEAD_KEY, KV_CAPS_KEY
from tests.fakes.tenants_memory import MemoryTenantLog

DIGEST = "0" * 64


@pytest.fixture
async def redis(valkey_url: str) -> AsyncIterator[RedisStore]:
    redis = connect(valkey_url, limit_s=20.0)
    await redis.execute("DEL", HEAD_KEY, TENANTS_KEY, KEYS_KEY, AUDIT_KEY, USED_KEY, KV_CAPS_KEY)
    yield redis
    await redis.close()


@pytest.fixture(params=["memory", "redis"])
async def log(request: pytest.FixtureRequest, redis: RedisStore) -> TenantLog:
    return MemoryTenantLog() if request.param == "memory" else RedisTenantLog(redis)


def a_tenant(name: str, after: Document | None, before: Document | None = None) -> Change:
    return Change(kind=Kind.TENANT, id=name, tenant=TenantId(name), before=before, after=after)


def a_key(name: str, tenant: str, *, gone: bool = False) -> Change:
    document = {"id": name, "tenant": tenant, "digest": DIGEST}
    before, after = (document, None) if gone else (None, document)
    return Change(kind=Kind.KEY, id=name, tenant=TenantId(tenant), before=before, after=after)


async def commit(log: TenantLog, *changes: Change, who: str = "acme/k1") -> None:
    stored = await log.load()
    await log.commit(changes, who=who, store=stored.store, version=stored.version, mark=stored.mark)


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


Backup = Callable[[], Awaitable[None]]


async def a_backup(log: TenantLog, redis: RedisStore) -> Backup:
    """Return what puts the log back to how it is now, as a failover to a replica that lagged does."""
    if isinstance(log, MemoryTenantLog):
        kept = copy.deepcopy(vars(log))

        async def put_back_memory() -> None:
            vars(log).update(copy.deepcopy(kept))

        return put_back_memory
    names = [HEAD_KEY, TENANTS_KEY, KEYS_KEY, AUDIT_KEY]
    dumps = {name: await redis.execute("DUMP", name) for name in names}

    async def put_back() -> None:
        for name, data in dumps.items():
            await redis.execute("DEL", name)
            if data is not None:
                await redis.execute("RESTORE", name, 0, data)

    return put_back


async def test_a_log_that_lost_its_last_changes_makes_readers_load_anew(
    log: TenantLog, redis: RedisStore
) -> None:
    await commit(log, a_tenant("a", {"id": "a"}))
    put_back = await a_backup(log, redis)
    await commit(log, a_tenant("a", {"id": "a", "weight": 2.0}), a_tenant("b", {"id": "b"}))
    known = await log.load()
    await put_back()
    kept = await log.load()
    assert await log.since(known.store, known.version, known.mark) is None
    assert await log.since(kept.store, kept.version, kept.mark) == []
    # By number the reader is neither ahead nor behind now, and then it is behind.
    await commit(log, a_tenant("c", {"id": "c"}), a_tenant("d", {"id": "d"}))
    assert (await log.load()).version == known.version
    assert await log.since(known.store, known.version, known.mark) is None
    with pytest.raises(StaleChange):
        await log.commit(
            [a_tenant("b", None)], who="x", store=known.store, version=known.version, mark=known.mark
        )
    await commit(log, a_tenant("e", {"id": "e"}))
    assert await log.since(known.store, known.version, known.mark) is None
    followed = await log.since(kept.store, kept.version, kept.mark)
    assert [one.change.id for one in followed or ()] == ["c", "d", "e"]


@pytest.mark.parametrize("num_later", [0, 1, 3])
async def test_gateways_heal_from_a_log_that_lost_edits(
    log: TenantLog, redis: RedisStore, num_later: int
) -> None:
    """Whatever the numbers are by then; a key that another gateway revoked since is gone here too."""
    old, fresh = (TenantFeed(TenantDirectory(), log, dict) for _ in range(2))
    await commit(log, a_tenant("a", {"id": "a"}), a_key("k", "a"))
    put_back = await a_backup(log, redis)
    await commit(log, a_tenant("a", {"id": "a", "weight": 2.0}))
    await commit(log, a_tenant("b", {"id": "b"}))
    await old.refresh()
    await put_back()
    await fresh.refresh()
    revoked = [a_key("k", "a", gone=True), *(a_tenant(f"t{n}", {"id": f"t{n}"}) for n in range(num_later))]
    await fresh.change(lambda: Edit(revoked), who="x")
    await old.refresh()
    assert list(old.directory.book) == list(fresh.directory.book)
    assert (old.directory.version, dict(old.directory.keys)) == (3 + num_later, {})
    assert old.directory.book.get(TenantId("a")) == Tenant(id=TenantId("a"))
    await old.change(lambda: Edit([a_tenant("z", {"id": "z"})]), who="x")
    assert "z" in (await log.load()).tenants


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
