"""Many tenants, every limit on, clients killed, limits edited: the store's own log shows no limit exceeded.

The whole, 10,000 requests over 200 tenants, is `python -m bench.tenants audit`.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.tenants.audit import Plan, audit
from bench.tenants.audit_client import CAPS, FIELDS
from bench.tenants.audit_events import BUCKETS, PERIODS, Asked, Bounds, Event, Renewed, Settled
from bench.tenants.audit_log import events
from bench.tenants.audit_store import audited_store
from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.domain.limits import Budget, Limits
from tests.fakes.quota_values import a_reservation, a_running, a_settlement, admits, an_account

LIMITS = {"concurrency", *BUCKETS, *PERIODS}


@pytest.mark.failure("B123")
@pytest.mark.failure("B125")
async def test_no_limit_is_exceeded_whatever_is_killed_and_edited(tmp_path: Path) -> None:
    # A second after an edit it is effective; of a client that the machine kept from asking, later.
    found = await audit(Plan(num_requests=600, num_tenants=20, num_clients=2, is_patient=True), tmp_path)
    report = found.report
    assert report.findings == []
    assert found.left == []
    assert found.not_admitted == set()
    assert report.refused.keys() == LIMITS, "every limit was reached"
    assert report.scopes.keys() == {"tenant", "parent", "key", "class", "model"}
    assert report.num_admitted > 0
    assert report.num_expired > 0, "some leases ended by themselves"
    assert len(report.versions) > 1, "edits were effective while requests came"
    assert (found.num_kills, found.num_restarts) == (2, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_nor_by_ten_thousand_requests_of_two_hundred_tenants(tmp_path: Path) -> None:
    plan = Plan(num_requests=10_000, num_tenants=200, num_kills=3, num_restarts=3, is_patient=True)
    found = await audit(plan, tmp_path)
    assert (found.report.findings, found.left, found.not_admitted) == ([], [], set())
    assert found.report.refused.keys() == LIMITS
    assert (found.num_kills, found.num_restarts) == (12, 3)


CONTROL = Plan(num_requests=240, num_tenants=20, num_clients=2, num_kills=0, num_restarts=0, is_patient=True)


async def test_without_limits_the_same_check_finds_every_kind_exceeded(tmp_path: Path) -> None:
    found = await audit(replace(CONTROL, without=(*FIELDS, CAPS)), tmp_path)
    kinds = {one.kind for one in found.report.findings}
    assert kinds == {*LIMITS, "prompt_cap", "output_cap", "other_limits"}
    assert found.report.num_admitted == 240


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["concurrency", "requests", "daily"])
async def test_with_one_limit_off_the_same_check_finds_that_one_exceeded(tmp_path: Path, kind: str) -> None:
    found = await audit(replace(CONTROL, without=(kind,)), tmp_path)
    assert {one.kind for one in found.report.findings} == {kind, "other_limits"}


async def test_clients_that_follow_no_edit_are_found(tmp_path: Path) -> None:
    plan = replace(CONTROL, num_requests=60, is_patient=False, is_deaf=True, edits_each=20)
    found = await audit(plan, tmp_path)
    assert "other_limits" in {one.kind for one in found.report.findings}


@contextlib.asynccontextmanager
async def a_monitored_store(
    tmp_path: Path,
) -> AsyncIterator[tuple[RedisQuota, Callable[[], Awaitable[list[Event]]]]]:
    """Yield a store, and what stops it and returns the events of its log."""
    async with audited_store(tmp_path) as store:
        redis = connect(store.url, limit_s=20.0)

        async def log() -> list[Event]:
            await store.stop()
            return list(events(store.lines()))

        yield RedisQuota(redis), log
        await redis.close()


async def test_the_log_has_what_the_store_did_and_not_what_it_was_asked_again(tmp_path: Path) -> None:
    limits = Limits(max_concurrency=1, daily=Budget(tokens=1000), utc_offset_minutes=60)
    account = an_account(limits, organisation="org")
    async with a_monitored_store(tmp_path) as (store, log):
        for _ in range(2):
            await store.reserve(a_reservation(account, 'a"\\n\x01'))
        assert not await admits(store, a_reservation(account, "b"))
        await store.renew([a_running(account, 'a"\\n\x01', 3)])
        await store.settle([a_settlement(account, 'a"\\n\x01')] * 2)
        await store.settle([a_settlement(account, "b", 0, 0)])
        seen = await log()
    first, refused, renewed, settled, forgotten = seen
    assert isinstance(first, Asked)
    assert isinstance(refused, Asked)
    assert (first.admitted, refused.admitted) == (True, False)
    assert first.bounds == {"tenant/team": Bounds.of(limits)}
    assert (first.id, first.tenant, first.num_choices) == ('a"\\n\x01', "team", 1)
    assert (first.prompt_tokens, first.output_tokens, first.lease_ms) == (10, 90, 30_000)
    assert renewed == Renewed(at_ms=renewed.at_ms, id=first.id)
    assert settled == Settled(at_ms=settled.at_ms, id=first.id, prompt_tokens=10, output_tokens=30)
    assert forgotten == Settled(at_ms=forgotten.at_ms, id="b")
    assert [one.at_ms for one in seen] == sorted(one.at_ms for one in seen)
