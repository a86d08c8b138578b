"""Every TenantLog that loses changes, or all of them: gateways go on, and they and it are alike again."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.directory import Change, Kind, TenantDirectory
from gateway.core.keys import ApiKey, key_from_document, key_to_document
from gateway.stores.tenants import AUDIT_KEY, KEYS_KEY, TENANTS_KEY, USED_KEY, RedisTenantLog, TenantLog
from gateway.tenant_admin import TenantAdmin
from gateway.tenant_feed import PUT_BACK_BY, Edit, TenantFeed
from services.chassis.redis import RedisStore
from services.domain.errors import DependencyDown, StaleChange
from services.domain.ids import TenantId
from services.domain.tenant import Tenant
from services.domain.tenant_keys import HEAD_KEY, KV_CAPS_KEY
from tests.fakes.tenant_changes import a_key, a_tenant, commit
from tests.fakes.tenants_memory import MemoryTenantLog


def saw_key(name: str) -> ApiKey:
    """Return the key that `a_key` makes."""
    return key_from_document("", a_key(name, "a").after or {})


Backup = Callable[[], Awaitable[None]]


async def a_backup(log: TenantLog, redis: RedisStore) -> Backup:
    """Return what puts the log back to how it is now, as a failover to a replica that lagged does.

    While it holds nothing yet, that is a restart without its data.
    """
    if isinstance(log, MemoryTenantLog):
        kept = copy.deepcopy(vars(log))

        async def put_back_memory() -> None:
            vars(log).update(copy.deepcopy(kept))

        return put_back_memory
    names = [HEAD_KEY, TENANTS_KEY, KEYS_KEY, AUDIT_KEY, USED_KEY, KV_CAPS_KEY]
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


async def test_a_key_that_was_seen_revoked_stays_so_in_every_gateway(
    log: TenantLog, redis: RedisStore
) -> None:
    saw, started_later = (TenantFeed(TenantDirectory(), log, dict) for _ in range(2))
    await commit(log, a_tenant("a", {"id": "a"}), a_key("k", "a"), a_key("other", "a"), a_key("old", "a"))
    await saw.refresh()
    put_back = await a_backup(log, redis)
    ending = replace(saw_key("old"), expires_at=100.0)
    rotated = Change(
        kind=Kind.KEY,
        id="old",
        tenant=TenantId("a"),
        before=key_to_document(saw_key("old")),
        after=key_to_document(ending),
    )
    await commit(log, a_key("k", "a", gone=True), rotated)
    await saw.refresh()
    await put_back()
    await started_later.refresh()
    assert {"k", "old", "other"} == set(started_later.directory.keys), "the control: it saw nothing"
    assert started_later.directory.keys["old"].expires_at is None
    await saw.refresh()
    await started_later.refresh()
    for gateway in (saw, started_later):
        assert gateway.directory.keys == {"other": saw_key("other"), "old": ending}
    stored = await log.load()
    assert (set(stored.keys), stored.keys["old"]["expires_at"]) == ({"other", "old"}, 100.0)
    assert [(one.who, one.change.id) for one in await log.audit(limit=2)] == [
        (PUT_BACK_BY, "old"),
        (PUT_BACK_BY, "k"),
    ]


async def test_while_the_store_takes_nothing_a_revoked_key_stays_closed_where_it_was_seen(
    log: TenantLog, redis: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = TenantFeed(TenantDirectory(), log, dict)
    await commit(log, a_tenant("a", {"id": "a"}), a_key("k", "a"))
    put_back = await a_backup(log, redis)
    await feed.refresh()
    commit_once = log.commit

    async def then_fails_over(*args: Any, **more: Any) -> Any:
        done = await commit_once(*args, **more)
        monkeypatch.setattr(log, "commit", read_only)
        await put_back()
        return done

    async def read_only(*args: Any, **more: Any) -> Any:
        raise DependencyDown("it is a replica")

    monkeypatch.setattr(log, "commit", then_fails_over)
    await feed.change(lambda: Edit([a_key("k", "a", gone=True)]), who="x")
    assert "k" in (await log.load()).keys
    assert dict(feed.directory.keys) == {}
    monkeypatch.undo()
    await feed.refresh()
    assert ((await log.load()).keys, dict(feed.directory.keys)) == ({}, {})


async def test_a_log_that_lost_everything_gets_it_back_once(log: TenantLog, redis: RedisStore) -> None:
    lose_everything = await a_backup(log, redis)
    gateways = [TenantFeed(TenantDirectory(), log, dict) for _ in range(3)]
    admin = TenantAdmin(gateways[0])
    documents = [{"id": "a", "weight": 2}, {"id": "b", "parent": "a", "kv_pages": 5}]
    await admin.apply(documents, delete_missing=False, etag="", who="x")
    await commit(log, a_key("k", "b"))
    await asyncio.gather(*(one.refresh() for one in gateways))
    held, keys = await log.load(), dict(gateways[0].directory.keys)
    await lose_everything()
    assert (await log.load()).tenants == {}
    await asyncio.gather(*(one.refresh() for one in gateways))
    stored = await log.load()
    assert stored.tenants == held.tenants
    assert all(one.directory.keys == keys for one in gateways)
    assert stored.store != held.store
    assert stored.version == 3
    assert {one.who for one in await log.audit()} == {PUT_BACK_BY}
    newcomer = TenantFeed(TenantDirectory(), log, dict)
    await TenantAdmin(newcomer).create({"id": "c"}, who="y")
    for gateway in gateways:
        await gateway.refresh()
        assert sorted(one.id for one in gateway.directory.book) == ["a", "b", "c"]
        assert set(gateway.directory.keys) == {"k"}


async def test_the_first_edit_after_everything_was_lost_takes_nobody_away(
    log: TenantLog, redis: RedisStore
) -> None:
    lose_everything = await a_backup(log, redis)
    feed = TenantFeed(TenantDirectory(), log, dict)
    await commit(log, a_tenant("a", {"id": "a"}), a_tenant("b", {"id": "b"}), a_key("k", "a"))
    await feed.refresh()
    await lose_everything()
    admin = TenantAdmin(feed)
    same = await admin.apply([{"id": "a"}, {"id": "b"}], delete_missing=False, etag="", who="x")
    assert (same.changes, set((await log.load()).tenants)) == ([], {"a", "b"})
    await lose_everything()
    await admin.update({"id": "b", "weight": 2}, ["weight"], etag="", who="x")
    stored = await log.load()
    assert (set(stored.tenants), set(stored.keys)) == ({"a", "b"}, {"k"})
    assert stored.tenants["b"]["weight"] == 2.0


async def test_redis_page_caps_come_back_with_the_tenants(redis: RedisStore) -> None:
    feed = TenantFeed(TenantDirectory(), RedisTenantLog(redis), dict)
    await TenantAdmin(feed).create({"id": "a", "kv_pages": 5}, who="x")
    await redis.execute("DEL", HEAD_KEY, TENANTS_KEY, AUDIT_KEY, KV_CAPS_KEY)
    await feed.refresh()
    assert await redis.execute("GET", KV_CAPS_KEY) == b'{"a":5}'
