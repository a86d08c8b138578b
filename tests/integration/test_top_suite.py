"""`quire top` beside a real scheduler and a real kvmanager."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.types.v1 import types_pb2
from scheduler.config import BandConfig
from services.commands import top
from services.commands.top import NO_ANSWER, Top
from tests.conftest import free_port
from tests.fakes import kv_peers
from tests.fakes.scheduler_peers import FakeGateway, FakeWorker, pb_acquire
from tests.fakes.valkey import eventually
from tests.integration.test_scheduler import scheduler

USE = [
    pb.TenantUse(tenant="one", uncached_tokens=100, cached_tokens=50, output_tokens=10),
    pb.TenantUse(tenant="other", uncached_tokens=375),
]


async def shown(screens: AsyncIterator[Top], total: int) -> list[Top]:
    """Return the screens up to the one on which tenant `one` has so many tokens in all."""
    seen = []
    async for screen in screens:
        seen.append(screen)
        if any(row.total_tokens == total for row in screen.tenants if row.tenant == "one"):
            return seen
    raise AssertionError


def row(screen: Top, tenant: str) -> Any:
    return next(one for one in screen.tenants if one.tenant == tenant)


async def test_it_shows_what_each_tenant_gets_beside_what_its_weight_would_give() -> None:
    async with contextlib.AsyncExitStack() as stack:
        bands = tuple(
            BandConfig(name=name, floor=0.1, target_ms=int(name == "batch"))
            for name in ("interactive", "standard", "batch")
        )
        running = await stack.enter_async_context(scheduler(bands=bands, degrade_after_ms=0))
        kvmanager = await stack.enter_async_context(kv_peers.serving())
        worker = await FakeWorker(running.channel).connect()
        gateway = await FakeGateway(running.channel).connect()
        gateway.acquire(pb_acquire("a", tenant="one", weight=1.0, tokens=40))
        over_budget = {"budget_step": types_pb2.DEGRADATION_STEP_CAP_OUTPUT}
        gateway.acquire(pb_acquire("b", tenant="other", weight=3.0, **over_budget))
        gateway.acquire(pb_acquire("c", tenant="last", band=types_pb2.BAND_BATCH))
        await gateway.until(lambda g: bool(g.heard["tenant_steps"]))
        holder = kv_peers.RawWorker(kvmanager.stub)
        holder.snapshot(0, [])
        holder.events(1, tenant_pages={"one": 7, "other": 2})

        async def pages_are_known() -> bool:
            return [dict(one.tenant_pages) for one in (await kvmanager.status()).workers] == [
                {"one": 7, "other": 2}
            ]

        await eventually(pages_are_known)
        where = [f"--scheduler=127.0.0.1:{running.port}", f"--kvmanager=127.0.0.1:{kvmanager.port}"]
        screens = top.screens(top.arguments(["--every", "0.05", *where]))
        before = await anext(screens)
        assert {one.tenant: one.tokens_per_s for one in before.tenants} == {"one": 0, "other": 0, "last": 0}
        worker.report(tenant_use=USE)
        *_, now = await shown(screens, 160)
        one, other, last = row(now, "one"), row(now, "other"), row(now, "last")
        assert round(one.tokens_per_s * now.every_s) == 160
        assert round(one.output_tokens_per_s * now.every_s) == 10
        assert (one.waiting, one.waiting_tokens, one.pages, other.pages) == (1, 40, 7, 2)
        assert (one.hit_rate, other.hit_rate, last.hit_rate) == (50 / 150, 0, None)
        assert (one.band, one.fair_share, other.fair_share) == ("standard", 0.25, 0.75)
        assert (one.share, other.share) == (0.25, 0.75), "100 + 5 + 20 of service beside 375"
        assert (last.share, last.fair_share) == (None, 1.0), "nobody of its band was served, it alone waits"
        assert (one.degraded, other.degraded) == ((), ("budget: cap_output",))
        assert last.degraded[0].startswith("m: ")
        assert [each.tenant for each in now.tenants] == ["other", "one", "last"]
        await holder.leave()


def test_one_look_without_a_scheduler_says_so(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    nobody = [f"--scheduler=127.0.0.1:{free_port()}", f"--kvmanager=127.0.0.1:{free_port()}"]
    assert top.main(["--once", "--every", "0.05", "--json", *nobody]) == 1
    out, err = capsysbinary.readouterr()
    screen = json.loads(out)
    assert (screen["queue"], screen["tenants"]) == (None, [])
    assert err.decode() == f"{NO_ANSWER}\n"
    assert top.main(["--once", "--every", "0.05", *nobody]) == 1
    assert NO_ANSWER.encode() in capsysbinary.readouterr().out
