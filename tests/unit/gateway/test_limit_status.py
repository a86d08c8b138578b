"""What answers tell of rates and budgets: the tightest scope, by OpenAI's names, and warnings once a day."""

import dataclasses

import pytest
import structlog

from gateway.budget_warnings import BudgetWarnings
from gateway.core.limit_status import WARNING_HEADER, BudgetWarning, ScopeState, duration, limit_status_of
from services.chassis.metrics import Metrics
from services.domain.ids import TenantId
from services.domain.limits import Budget, Limits, Rate, Scope, ScopeKind
from tests.fakes.quota_values import an_account


def state(requests: float = 0, tokens: float = 0, day: float = 0, month: float = 0) -> ScopeState:
    return ScopeState(requests, tokens, day, month)


def test_the_scope_with_the_least_left_is_told() -> None:
    account = an_account(
        Limits(tokens_per_minute=Rate(per_minute=600)),
        Limits(tokens_per_minute=Rate(per_minute=6000, burst=100), requests_per_minute=Rate(per_minute=60)),
        Limits(),
    )
    told = limit_status_of(account, [state(tokens=500), state(tokens=40.9, requests=59), state(tokens=1)])
    assert told.headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "40",
        "x-ratelimit-reset-tokens": "591ms",
    }


def test_what_is_not_limited_is_not_told_and_a_debt_is_nothing_left() -> None:
    assert limit_status_of(an_account(Limits()), [state()]).headers == {}
    debt = limit_status_of(an_account(Limits(tokens_per_minute=Rate(per_minute=60))), [state(tokens=-30)])
    assert debt.headers["x-ratelimit-remaining-tokens"] == "0"
    assert debt.headers["x-ratelimit-reset-tokens"] == "1m30s"


@pytest.mark.parametrize("hard", [False, True])
def test_a_budget_warns_from_its_share_on(hard: bool) -> None:
    account = an_account(Limits(daily=Budget(tokens=1000, hard=hard, warn_at=0.5), monthly=Budget(tokens=10)))
    assert limit_status_of(account, [state(day=499)]).warnings == []
    told = limit_status_of(account, [state(day=500, month=8)])
    assert told.headers[WARNING_HEADER] == (
        "tenant/team/daily_budget 500 of 1000 tokens; tenant/team/monthly_budget 8 of 10 tokens"
    )
    assert [one.hard for one in told.warnings] == [hard, True]


def test_a_header_holds_only_what_headers_can() -> None:
    limits = Limits(daily=Budget(tokens=1, warn_at=0.0))
    scope = Scope(kind=ScopeKind.MODEL, id="team/模型 é", limits=limits)
    account = dataclasses.replace(an_account(Limits()), scopes=(scope,))
    told = limit_status_of(account, [state()]).headers[WARNING_HEADER]
    assert told == "model/team/?? ?/daily_budget 0 of 1 tokens"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0165, "17ms"), (1, "1s"), (1.51, "1.6s"), (360, "6m0s")]
)
def test_times_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_each_warning_is_counted_and_logged_once_a_day() -> None:
    now = 86_400.0 * 100
    metrics = Metrics()
    watch = BudgetWarnings(metrics, lambda: now)
    soft = BudgetWarning(scope="tenant/a", budget="daily_budget", used=9, limit=10, hard=False)
    other = BudgetWarning(scope="tenant/b", budget="daily_budget", used=9, limit=10, hard=False)
    organisation = TenantId("org")
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            watch.warned(organisation, TenantId("a"), [soft])
        watch.warned(organisation, TenantId("b"), [other])
        now += 86_400
        watch.warned(organisation, TenantId("a"), [soft])
    assert [line["scope"] for line in lines] == ["tenant/a", "tenant/b", "tenant/a"]
    labels = {"budget": "daily_budget", "hard": "false"}
    assert metrics.registry.get_sample_value("quire_budget_warnings_total", labels) == 5
