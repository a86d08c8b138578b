"""Every QuotaStore: all scopes of a request at once, budgets by calendar, and refusals that say why."""

import datetime
import math
import time
from importlib import resources

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.stores.quota import QuotaStore, Reservation
from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import Script, connect
from services.domain.errors import ErrorDetail, QuotaExceeded
from services.domain.limits import Budget, Limits, Rate
from tests.fakes.quota_counters import end_of, local_time
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import (
    a_reservation,
    a_running,
    a_settlement,
    admits,
    an_account,
    held_by,
    use_of,
    with_limits,
)

PLENTY = Limits(max_concurrency=100, tokens_per_minute=Rate(per_minute=100_000))


async def refusal_of(store: QuotaStore, reservation: Reservation) -> ErrorDetail:
    with pytest.raises(QuotaExceeded) as caught:
        await store.reserve(reservation)
    return caught.value.detail


@pytest.mark.failure("B126")
@pytest.mark.failure("B130")
@pytest.mark.parametrize("tight", range(5), ids=["tenant", "parent", "key", "class", "model"])
async def test_a_refusal_at_one_scope_takes_nothing_from_any(store: QuotaStore, tight: int) -> None:
    limits = [PLENTY] * 5
    limits[tight] = Limits(max_concurrency=1)
    account = an_account(*limits)
    assert await admits(store, a_reservation(account, "first"))
    before = await store.use(account)
    for n in range(20):
        detail = await refusal_of(store, a_reservation(account, n))
        scope = account.scopes[tight].name
        assert (detail.quota, detail.metadata["scope"]) == (f"{scope}/concurrency", scope)
        assert (detail.metadata["limit"], detail.metadata["used"]) == ("1", "1")
        assert detail.retry_after_s is not None
    assert held_by(await store.use(account)) == held_by(before) == [(1, 100)] * 5
    await store.settle([a_settlement(account, "first")])
    assert held_by(await store.use(account)) == [(0, 0)] * 5
    assert [use.day_spent for use in await store.use(account)] == [40] * 5


async def test_a_parents_limit_holds_for_its_teams_together(store: QuotaStore) -> None:
    parent = Limits(max_concurrency=3)
    one = an_account(PLENTY, parent, tenant="one")
    two = an_account(PLENTY, parent, tenant="two", organisation=one.organisation)
    admitted = [
        await admits(store, a_reservation(team, f"{team.tenant}-{n}"))
        for n in range(2)
        for team in (one, two)
    ]
    assert admitted == [True, True, True, False]
    assert [use.num_leases for use in await store.use(one)] == [2, 3]
    assert [use.num_leases for use in await store.use(two)] == [1, 3]


@pytest.mark.parametrize(
    ("limits", "name", "limit"),
    [
        (Limits(requests_per_minute=Rate(per_minute=2)), "requests_per_minute", 2),
        (Limits(tokens_per_minute=Rate(per_minute=60, burst=250)), "tokens_per_minute", 250),
        (Limits(prompt_tokens_per_minute=Rate(per_minute=25)), "prompt_tokens_per_minute", 25),
        (Limits(output_tokens_per_minute=Rate(per_minute=200)), "output_tokens_per_minute", 200),
        (Limits(daily=Budget(tokens=250)), "daily_budget", 250),
        (Limits(monthly=Budget(tokens=299)), "monthly_budget", 299),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_kind_of_limit_refuses_the_third_of_three_and_says_so(
    store: QuotaStore, limits: Limits, name: str, limit: int
) -> None:
    account = an_account(limits)
    assert await admits(store, a_reservation(account, 1))
    assert await admits(store, a_reservation(account, 2))
    detail = await refusal_of(store, a_reservation(account, 3))
    assert (detail.quota, detail.metadata["limit"]) == (f"tenant/team/{name}", str(limit))
    assert detail.retry_after_s is not None
    await store.settle([a_settlement(account, 1, 0, 0)])
    assert await admits(store, a_reservation(account, 4)), "what cost nothing is given back"


async def test_the_wait_that_is_told_is_the_longest(store: QuotaStore) -> None:
    slow = Limits(tokens_per_minute=Rate(per_minute=1, burst=150))
    account = an_account(Limits(max_concurrency=1), slow, Limits(max_concurrency=1))
    assert await admits(store, a_reservation(account, 1))
    detail = await refusal_of(store, a_reservation(account, 2))
    assert detail.quota == f"parent/{account.organisation}/tokens_per_minute"
    assert 2900 < (detail.retry_after_s or 0) <= 3000, "50 tokens at one a minute"


async def test_a_soft_budget_refuses_nothing(store: QuotaStore) -> None:
    account = an_account(Limits(daily=Budget(tokens=100, hard=False)))
    assert await admits(store, a_reservation(account, 1))
    assert await admits(store, a_reservation(account, 2))
    assert (await use_of(store, account)).day_charged == 200


@pytest.mark.parametrize("offset", [-720, -210, 0, 330, 840])
async def test_a_spent_budget_comes_back_at_midnight_of_its_zone(store: QuotaStore, offset: int) -> None:
    day = an_account(Limits(daily=Budget(tokens=150), utc_offset_minutes=offset))
    month = an_account(Limits(monthly=Budget(tokens=150), utc_offset_minutes=offset))
    for account, which in ((day, "day"), (month, "month")):
        await store.reserve(a_reservation(account, 1))
        held = await refusal_of(store, a_reservation(account, 2))
        assert held.retry_after_s == 1.0, "it is only reserved, and may come back at any time"
        await store.settle([a_settlement(account, 1, output=90)])
        now = datetime.datetime.now(datetime.UTC).timestamp()
        local = local_time(now, offset)
        number = local.toordinal() if which == "day" else local.year * 12 + local.month - 1
        spent = await refusal_of(store, a_reservation(account, 2))
        assert spent.retry_after_s == pytest.approx(end_of(which, number, offset) - now, abs=100)
        never = await refusal_of(store, a_reservation(account, 3, output=200))
        assert never.retry_after_s is None


async def test_another_day_has_its_own_budget_and_a_request_counts_where_it_began(store: QuotaStore) -> None:
    minutes = math.floor(datetime.datetime.now(datetime.UTC).timestamp() / 60) % 1440
    midnight = (1440 if minutes > 720 else 0) - minutes
    today = an_account(Limits(daily=Budget(tokens=150), utc_offset_minutes=midnight - 10))
    tomorrow = with_limits(today, Limits(daily=Budget(tokens=150), utc_offset_minutes=midnight + 60))
    await store.reserve(a_reservation(today, 1))
    assert not await admits(store, a_reservation(today, 2))
    assert await admits(store, a_reservation(tomorrow, 3))
    assert not await admits(store, a_reservation(tomorrow, 4))
    await store.settle([a_settlement(today, 1, output=90), a_settlement(tomorrow, 3)])
    assert (await use_of(store, tomorrow)).day_spent == 40
    assert not await admits(store, a_reservation(today, 5, output=105)), (
        "a day that was left does not begin again"
    )


def ahead(store: QuotaStore, days: int) -> QuotaStore:
    """Return the store, or one on the same counters, whose clock is so many days ahead."""
    if isinstance(store, MemoryQuota):
        store._clock = lambda: time.time() + days * 86_400
        return store
    assert isinstance(store, RedisQuota)
    jumped = RedisQuota(store._redis)
    source = jumped._script.source
    jumped._script = Script(source.replace("tonumber(time[1])", f"(tonumber(time[1]) + {days * 86_400})"))
    assert jumped._script.source != source
    return jumped


@pytest.mark.parametrize("days", [5, 40, 3000])
async def test_a_clock_that_jumps_ahead_spends_no_later_day_or_month(store: QuotaStore, days: int) -> None:
    account = an_account(Limits(daily=Budget(tokens=150), monthly=Budget(tokens=150)))
    jumped = ahead(store, days)
    await jumped.reserve(a_reservation(account, 1))
    await jumped.reserve(a_reservation(account, 2, output=10))
    await jumped.settle([a_settlement(account, 1, output=90)])
    assert not await admits(jumped, a_reservation(account, 3))
    back = ahead(store, 0)
    in_month = local_time(time.time(), 0) + datetime.timedelta(days=2)
    of_month = local_time(time.time() + days * 86_400, 0)
    if (of_month.year, of_month.month) <= (in_month.year, in_month.month):
        account = with_limits(account, Limits(daily=Budget(tokens=150)))  # The month is the same.
    assert await admits(back, a_reservation(account, 4, output=90))
    await back.settle([a_settlement(account, 2, output=10)])
    assert (await use_of(back, account)).day_charged == 100, "what began in that day counts in none of now"
    detail = await refusal_of(back, a_reservation(account, 5))
    assert detail.retry_after_s is not None
    assert detail.retry_after_s <= 1.0
    await back.settle([a_settlement(account, 4, output=90)])
    use = await use_of(back, account)
    assert (use.day_charged, use.day_spent, use.num_leases, use.reserved_tokens) == (100, 100, 0, 0)


async def test_limits_are_those_of_the_call_and_edits_hold_at_once(store: QuotaStore) -> None:
    account = an_account(Limits(tokens_per_minute=Rate(per_minute=1000)))
    for n in range(5):
        await store.reserve(a_reservation(account, n))
    lowered = with_limits(account, Limits(tokens_per_minute=Rate(per_minute=300), max_concurrency=5))
    assert (await use_of(store, lowered)).left_tokens == 300
    assert (await refusal_of(store, a_reservation(lowered, "x"))).quota == "tenant/team/concurrency"
    budgeted = with_limits(account, Limits(daily=Budget(tokens=550)))
    assert (await refusal_of(store, a_reservation(budgeted, "x"))).quota == "tenant/team/daily_budget"
    assert await admits(store, a_reservation(an_account(organisation=account.organisation), "free"))


async def test_renewals_tell_what_all_scopes_have_spent(store: QuotaStore) -> None:
    one = an_account(PLENTY, PLENTY, tenant="one")
    two = an_account(PLENTY, PLENTY, tenant="two", organisation=one.organisation)
    for account in (one, two):
        await store.reserve(a_reservation(account, account.tenant))
    await store.renew([a_running(two, "two", used=7)])
    spent = await store.renew([a_running(one, "one", used=20)])
    names = [(one.organisation, scope.name) for scope in one.scopes]
    assert [(spent[name].day, spent[name].month) for name in names] == [(20, 20), (27, 27)]
    await store.settle([a_settlement(one, "one", output=20)])
    spent = await store.renew([a_running(two, "two", used=8)])
    parent = (one.organisation, f"parent/{one.organisation}")
    assert spent[parent].day == 38
    assert (await use_of(store, one)).day_charged == 30


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(day=st.integers(0, 200_000))
async def test_the_scripts_calendar_is_the_calendar(valkey_url: str, day: int) -> None:
    lines = resources.files("gateway.stores").joinpath("quota_counters.lua").read_text("utf-8")
    redis = connect(valkey_url, limit_s=20.0)
    ask = "\nlocal month = month_of(tonumber(ARGV[1]))\nreturn { month, first_day_of(month + 1) }"
    month, next_first = await redis.execute("EVAL", lines + ask, 0, day)
    date = datetime.date(1970, 1, 1) + datetime.timedelta(days=day)
    assert month == date.year * 12 + date.month - 1
    following = datetime.date((month + 1) // 12, (month + 1) % 12 + 1, 1)
    assert next_first == (following - datetime.date(1970, 1, 1)).days
    await redis.close()
