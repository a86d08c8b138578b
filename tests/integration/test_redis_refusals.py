"""A Redis that answers every command with an error ends nothing: what lives on it goes on once it may."""

import asyncio

import pytest

from gateway.backlog import Backlog
from gateway.core.directory import TenantDirectory
from gateway.settler import Settler
from gateway.stores.quota_redis import RedisQuota
from gateway.stores.tenants import RedisTenantLog
from gateway.tenant_feed import TenantFeed
from services.chassis.redis import RedisStore, connect
from services.domain.errors import DependencyDown
from services.domain.limits import Limits
from tests.fakes.quota_values import a_reservation, a_running, a_settlement, an_account, use_of
from tests.fakes.valkey import Valkey, eventually

ALL = ("on", ">secret", "~*", "&*", "+@all")


async def num_errors(admin: RedisStore, code: str) -> int:
    """Return how often the server has refused a command so."""
    told = (await admin.execute("INFO", "errorstats")).decode()
    lines = [line for line in told.splitlines() if line.startswith(f"errorstat_{code}:")]
    return sum(int(line.rpartition("=")[2]) for line in lines)


@pytest.mark.failure("B152")
@pytest.mark.parametrize(
    ("denied", "code"),
    [(("-eval", "-evalsha"), "NOPERM"), (("resetkeys",), "NOPERM"), (None, "WRONGTYPE")],
    ids=["no scripts", "no keys", "keys of somebody else"],
)
async def test_refused_commands_end_neither_the_settler_nor_the_feed(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch, denied: tuple[str, ...] | None, code: str
) -> None:
    monkeypatch.setattr("gateway.settler.WATCH_EVERY_S", 0.05)
    monkeypatch.setattr("gateway.stores.quota_redis.BACKGROUND_LIMIT_S", 20.0)
    admin = connect(valkey.url, limit_s=20.0)
    await admin.execute("ACL", "SETUSER", "gateway", *ALL)
    redis = connect(valkey.url.replace("//", "//gateway:secret@"), limit_s=20.0)
    store, account = RedisQuota(redis), an_account(Limits())
    settler = Settler(store, Backlog("boot"), lambda _: [a_running(account, "runs", 5)], lambda _: None)
    feed = TenantFeed(TenantDirectory(), RedisTenantLog(redis), dict)
    await store.reserve(a_reservation(account, "runs"))
    await store.reserve(a_reservation(account, "ends"))

    async def goes_on() -> bool:
        return await num_errors(admin, code) > seen

    try:
        async with asyncio.TaskGroup() as group:  # A task that ends by an error ends the test.
            tasks = [group.create_task(settler.run()), group.create_task(feed.run())]
            seen = 0
            if denied is None:
                keys = await admin.execute("KEYS", "quire:quota:*")
                await admin.pipeline([("DEL", *keys), *(("SET", name, "x") for name in keys)])
            else:
                await admin.execute("ACL", "SETUSER", "gateway", *denied)
            await eventually(goes_on)
            settler.settle(a_settlement(account, "ends"))
            seen = await num_errors(admin, code)
            await eventually(goes_on)
            with pytest.raises(DependencyDown):
                await store.reserve(a_reservation(account, "new"))
            if denied is None:
                await admin.execute("DEL", *keys)
            await admin.execute("ACL", "SETUSER", "gateway", *ALL)
            async with asyncio.timeout(60):
                await settler.drained()

            async def is_renewed() -> bool:
                return (await use_of(RedisQuota(admin), account)).day_spent == 45

            await eventually(is_renewed)
            assert [task.done() for task in tasks] == [False, False]
            for task in tasks:
                task.cancel()
    finally:
        await asyncio.gather(admin.close(), redis.close())


async def test_one_wrong_key_does_not_hold_back_what_others_ask(valkey: Valkey) -> None:
    redis = connect(valkey.url, limit_s=20.0)
    await redis.execute("SET", "text", "x")
    for _ in range(5):
        with pytest.raises(DependencyDown, match="refuses a command"):
            await redis.execute("INCR", "text")
    assert redis.is_up
    assert await redis.execute("GET", "text") == b"x"
    await redis.close()
