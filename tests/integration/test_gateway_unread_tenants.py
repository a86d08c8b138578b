"""A gateway that starts while Redis is down refuses nobody for good whom it may only not know yet."""

import asyncio

from gateway.core.directory import TenantDirectory
from gateway.key_admin import KeyAdmin
from gateway.tenant_admin import TenantAdmin
from gateway.tenant_feed import TenantFeed
from services.domain.errors import BadCredential, DependencyDown
from tests.fakes.gateway_rig import ACME_KEY, SERVER_KEY, failure_of, gateway_rig, generate
from tests.fakes.tenants_memory import MemoryTenantLog

LIMITS = {"max_concurrency": 8, "tokens_per_minute": 1_000_000}


async def test_a_gateway_is_ready_once_it_has_read_the_store() -> None:
    log = MemoryTenantLog()
    elsewhere = TenantFeed(TenantDirectory(), log, dict)
    await TenantAdmin(elsewhere).create({"id": "team", **LIMITS}, who="x")
    made = await KeyAdmin(elsewhere, log, SERVER_KEY).create({"tenant": "team"}, lifetime_s=None, who="x")
    team, wrong = (("authorization", f"Bearer {made.secret}"),), (("authorization", "Bearer wrong"),)
    log.is_down = True
    async with gateway_rig(tenant_log=log, waits=False) as rig:
        await rig.until(lambda: rig.parts.scheduler.is_connected and rig.parts.queries.models.served())
        assert not rig.parts.is_ready
        for key in (team, wrong):
            error = await failure_of(rig, metadata=key)
            assert type(error) is DependencyDown
            assert error.detail.retry_after_s == 1.0
        for known in (None, ACME_KEY):
            assert (await generate(rig, metadata=known)).text() == "hello world"
        assert not rig.parts.is_ready
        rig.parts.changed.clear()
        log.is_down = False
        async with asyncio.timeout(60):
            await rig.parts.changed.wait()
        await rig.until(lambda: rig.parts.is_ready)
        assert (await generate(rig, metadata=team)).text() == "hello world"
        assert type(await failure_of(rig, metadata=wrong)) is BadCredential
        log.is_down = True
        assert rig.parts.is_ready
        assert (await generate(rig, metadata=team)).text() == "hello world"
