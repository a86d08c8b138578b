"""Every QuotaStore says with each reservation and each refusal how the account stands."""

import dataclasses

import pytest

from gateway.core.limit_status import WARNING_HEADER, limit_status_of
from gateway.limit_lookup import states_of
from gateway.stores.quota import QuotaStore
from services.domain.errors import QuotaExceeded
from services.domain.limits import Budget, Limits, Rate
from tests.fakes.quota_values import a_reservation, a_settlement, an_account

LIMIT, LEFT = "x-ratelimit-limit-{}", "x-ratelimit-remaining-{}"
SLOW = Limits(
    requests_per_minute=Rate(per_minute=1, burst=3), tokens_per_minute=Rate(per_minute=1, burst=250)
)


async def test_what_is_left_is_told_after_each_reservation_and_with_a_refusal(store: QuotaStore) -> None:
    account = an_account(SLOW, Limits(tokens_per_minute=Rate(per_minute=10**6)))
    first = (await store.reserve(a_reservation(account, 1))).headers
    second = (await store.reserve(a_reservation(account, 2))).headers
    assert (first[LIMIT.format("requests")], first[LIMIT.format("tokens")]) == ("3", "250")
    # One a minute comes back meanwhile.
    assert int(first[LEFT.format("requests")]) in (2, 3)
    assert 150 <= int(first[LEFT.format("tokens")]) <= 160
    assert 50 <= int(second[LEFT.format("tokens")]) <= 60
    with pytest.raises(QuotaExceeded) as caught:
        await store.reserve(a_reservation(account, 3))
    told = caught.value.detail.rate_limits
    assert 50 <= int(told[LEFT.format("tokens")]) <= 60
    assert told.keys() == second.keys()


async def test_who_reserves_nothing_is_told_the_same(store: QuotaStore) -> None:
    account = an_account(
        Limits(requests_per_minute=Rate(per_minute=10**6, burst=3), daily=Budget(tokens=1000, warn_at=0.03)),
        Limits(tokens_per_minute=Rate(per_minute=10**6)),
    )
    before = limit_status_of(account, states_of(await store.use(account)))
    assert before.headers[LEFT.format("requests")] == "3"
    await store.settle([a_settlement(account, 1)])
    after = limit_status_of(account, states_of(await store.use(account)))
    assert after.headers[WARNING_HEADER] == "tenant/team/daily_budget 40 of 1000 tokens"
    assert after.headers.keys() == before.headers.keys() | {WARNING_HEADER}


async def test_a_budget_warns_when_its_share_is_used_not_when_it_is_reserved(store: QuotaStore) -> None:
    account = an_account(Limits(daily=Budget(tokens=100, hard=False, warn_at=0.4)))
    assert (await store.reserve(a_reservation(account, 1))).warnings == []
    await store.settle([a_settlement(account, 1)])
    told = await store.reserve(a_reservation(account, 2))
    assert told.headers == {WARNING_HEADER: "tenant/team/daily_budget 40 of 100 tokens"}
    assert [dataclasses.astuple(one) for one in told.warnings] == [
        ("tenant/team", "daily_budget", 40, 100, False)
    ]


async def test_tokens_apart_seats_and_hard_budgets_are_told_alike_by_both_ways(store: QuotaStore) -> None:
    slow = Rate(per_minute=1, burst=250)
    limits = Limits(
        prompt_tokens_per_minute=slow,
        output_tokens_per_minute=slow,
        max_concurrency=3,
        daily=Budget(tokens=10**6),
    )
    account = an_account(limits)
    reservation = a_reservation(account, 1)
    told = (await store.reserve(reservation)).headers
    # One a minute comes back meanwhile.
    for kind, taken in (("prompt", reservation.prompt_tokens), ("output", reservation.output_tokens)):
        assert 250 - taken <= int(told[LEFT.format(f"{kind}-tokens")]) <= 260 - taken
    assert (told[LIMIT.format("requests")], told[LEFT.format("requests")]) == ("3", "2")
    assert told[LEFT.format("tokens")] == str(10**6 - reservation.num_tokens)
    again = limit_status_of(account, states_of(await store.use(account))).headers
    assert again.keys() == told.keys()
    for kind in ("requests", "tokens"):
        assert again[LEFT.format(kind)] == told[LEFT.format(kind)]
