"""A Redis that hangs for longer than it remembers ids: everything is charged, and once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.backlog import Backlog
from gateway.settler import Settler
from gateway.stores.journal import SUFFIX, Journal
from gateway.stores.quota import MAX_BATCH
from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.domain.limits import Account, Limits
from tests.fakes.quota_values import a_reservation, a_settlement, an_account, use_of
from tests.fakes.valkey import Valkey, eventually
from tests.unit.chassis.test_chassis_redis import Proxy

NUM_REQUESTS = 200
CHARGED = 40 * NUM_REQUESTS


@pytest.fixture(autouse=True)
def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are forgotten, and calls given up, in a fraction of the time that Redis hangs in these tests."""
    monkeypatch.setattr("gateway.stores.quota_redis.REMEMBER_S", 0.05)
    monkeypatch.setattr("gateway.stores.quota_redis.BACKGROUND_LIMIT_S", 0.2)


class Gateway:
    """What one gateway has of quotas."""

    def __init__(self, url: str, folder: Path, boot: str) -> None:
        self.redis = connect(url, limit_s=20.0)
        self.store = RedisQuota(self.redis)
        backlog = Backlog(boot, Journal(folder, boot))
        self.settler = Settler(self.store, backlog, lambda _: [], lambda _: None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.settler.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.redis.close()


async def are_written(folder: Path, number: int) -> bool:
    texts = await asyncio.to_thread(lambda: [path.read_text() for path in folder.glob(f"*{SUFFIX}")])
    return sum(text.count('"idempotency_key"') for text in texts) == number


async def forgotten(gateway: Gateway, account: Account) -> bool:
    """Whether the store knows no id any more; asking makes it forget those whose time is up."""
    await gateway.store.use(account)
    key = f"quire:quota:{{{account.organisation}}}:reservations"
    return bool(await gateway.redis.execute("HLEN", key) == 0)


@pytest.mark.failure("B152")
async def test_one_that_waits_charges_all_once(valkey: Valkey, tmp_path: Path) -> None:
    account, folder = an_account(Limits()), tmp_path / "journal"
    gateway = Gateway(valkey.url, folder, "one")
    async with gateway.running():
        for n in range(NUM_REQUESTS):
            await gateway.store.reserve(a_reservation(account, n))
        valkey.pause()
        for n in range(NUM_REQUESTS):
            gateway.settler.settle(a_settlement(account, n))
        await eventually(lambda: are_written(folder, NUM_REQUESTS))
        assert gateway.settler.num_pending == NUM_REQUESTS
        valkey.go_on()
        async with asyncio.timeout(60):
            await gateway.settler.drained()
        assert gateway.settler.num_pending == 0
        use = await use_of(gateway.store, account)
        assert (use.num_leases, use.reserved_tokens, use.day_spent) == (0, 0, CHARGED)
    assert list(folder.iterdir()) == [], "what is settled is not kept"


@pytest.mark.failure("B152")
async def test_one_that_ends_leaves_them_to_the_next_start(valkey: Valkey, tmp_path: Path) -> None:
    account, folder = an_account(Limits()), tmp_path / "journal"
    direct = Gateway(valkey.url, tmp_path / "other", "direct")
    num_requests = MAX_BATCH // 2
    async with Proxy(valkey.port).running() as proxy:
        gateway = Gateway(f"redis://127.0.0.1:{proxy.port}/0", folder, "one")
        async with gateway.running():
            for n in range(num_requests):
                await gateway.store.reserve(a_reservation(account, n))
            proxy.delay_s = None  # It hears and does what it is told, and its answers are lost.
            for n in range(num_requests):
                gateway.settler.settle(a_settlement(account, n))
            await eventually(lambda: are_written(folder, num_requests))
            await eventually(lambda: forgotten(direct, account))
        proxy.cut()
    after = Gateway(valkey.url, folder, "two")
    async with after.running():
        async with asyncio.timeout(60):
            await after.settler.drained()
        use = await use_of(after.store, account)
        assert (use.num_leases, use.reserved_tokens, use.day_spent) == (0, 0, 40 * num_requests)
    assert list(folder.iterdir()) == []
    await direct.redis.close()
