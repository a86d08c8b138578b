"""What answers tell of rates and budgets: the tightest scope, by OpenAI's names, and warnings once a day."""

import dataclasses

import pytest
import structlog

from gateway.budget_warnings import BudgetWarnings
from gateway.core.limit_status import (
    WARNING_HEADER,
    BudgetWarning,
    ScopeState,
    duration,
    is_told,
    limit_status_of,
)
from services.chassis.metrics import Metrics
from services.domain.ids import TenantId
from services.domain.limits import Budget, Limits, Rate, Scope, ScopeKind
from tests.fakes.quota_values import an_account


def state(
    requests: float = 0,
    tokens: float = 0,
    day: float = 0,
    month: float = 0,
    *,
    prompt: float = 0,
    output: float = 0,
    leases: float = 0,
    open_tokens: float = 0,
) -> ScopeState:
    return ScopeState(
        left_requests=requests,
        left_tokens=tokens,
        left_prompt_tokens=prompt,
        left_output_tokens=output,
        num_leases=leases,
        day_charged=day + open_tokens,
        day_spent=day,
        month_charged=month + open_tokens,
        month_spent=month,
    )


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


def test_prompt_and_output_tokens_are_told_apart_where_they_are_limited_apart() -> None:
    limits = Limits(
        prompt_tokens_per_minute=Rate(per_minute=600), output_tokens_per_minute=Rate(per_minute=60, burst=30)
    )
    assert is_told(limits)
    assert limit_status_of(an_account(limits), [state(prompt=590, output=29)]).headers == {
        "x-ratelimit-limit-prompt-tokens": "600",
        "x-ratelimit-remaining-prompt-tokens": "590",
        "x-ratelimit-reset-prompt-tokens": "1s",
        "x-ratelimit-limit-output-tokens": "30",
        "x-ratelimit-remaining-output-tokens": "29",
        "x-ratelimit-reset-output-tokens": "1s",
    }


def test_without_rates_the_fewest_seats_and_the_smallest_rest_of_a_hard_budget_are_told() -> None:
    team = Limits(max_concurrency=4, daily=Budget(tokens=100), monthly=Budget(tokens=1000))
    org = Limits(max_concurrency=8, daily=Budget(tokens=10, hard=False))
    assert is_told(Limits(max_concurrency=1))
    states = [state(day=20, month=20, open_tokens=30, leases=1), state(day=9, leases=7)]
    told = limit_status_of(an_account(team, org), states).headers
    assert {name: value for name, value in told.items() if name != WARNING_HEADER} == {
        "x-ratelimit-limit-requests": "8",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "50",
    }
    rated = Limits(max_concurrency=1, requests_per_minute=Rate(per_minute=60))
    told = limit_status_of(an_account(rated), [state(requests=60, leases=1)]).headers
    assert told["x-ratelimit-remaining-requests"] == "60", "a rate comes first"
    assert not is_told(Limits(utc_offset_minutes=60))


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
