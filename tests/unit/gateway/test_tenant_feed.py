"""When the feed asks: at ticks while the store answers, and again and again while it does not."""

import asyncio

import pytest

from gateway import tenant_feed
from gateway.core.directory import TenantDirectory
from gateway.tenant_feed import TenantFeed
from tests.fakes.tenants_memory import MemoryTenantLog


@pytest.mark.parametrize("is_down", [True, False])
async def test_a_store_that_comes_back_is_followed_before_the_next_tick(
    monkeypatch: pytest.MonkeyPatch, is_down: bool
) -> None:
    ticks = asyncio.Event()

    async def tick(period_s: float) -> None:
        ticks.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(tenant_feed, "next_tick", tick)
    log, complete = MemoryTenantLog(), asyncio.Event()
    log.is_down = is_down
    feed = TenantFeed(TenantDirectory(), log, dict, complete.set)
    following = asyncio.create_task(feed.run())
    async with asyncio.timeout(60):
        for _ in range(10):  # It has asked by now, and was told that the store is down.
            await asyncio.sleep(0)
        assert ticks.is_set() is not is_down
        log.is_down = False
        await complete.wait()
        await ticks.wait()
    following.cancel()
