"""A spent soft budget lets a tenant's requests degrade, if it agreed, and nothing flaps at a threshold."""

import random

import pytest

from gateway.budget_degradation import FRESH_S, BudgetDegradation
from gateway.core import budget_ladder
from gateway.core.auth import Authenticator
from gateway.core.budget_ladder import GAP, next_step, thresholds
from gateway.core.directory import TenantDirectory
from gateway.core.limit_status import LimitStatus
from gateway.core.request import Caller
from gateway.limit_lookup import LimitLookup
from services.chassis.metrics import Metrics
from services.domain.degradation import Degradation, Step
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Budget, Limits
from services.domain.tenant import Tenant
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import a_reservation, a_settlement

DAY_S = 86_400.0
AGREED = Degradation(cap_output_tokens=10, budget_at=1.0)


def test_each_step_has_its_threshold_and_none_refuses() -> None:
    assert thresholds(1.0) == (1.0, 1.1, 1.2)
    spent = {0.0: 0, 0.999: 0, 1.0: Step.CAP_OUTPUT, 1.1: Step.CUT_CONTEXT, 1.2: Step.SMALLER_MODEL}
    for part, step in spent.items():
        assert next_step(Step.NONE, part, 1.0) == step
    assert next_step(Step.SMALLER_MODEL, 1000.0, 1.0) is Step.SMALLER_MODEL
    assert next_step(Step.NONE, 0.5, 0.5) is Step.CAP_OUTPUT


def test_a_step_is_let_go_below_its_threshold_by_the_gap_only() -> None:
    assert next_step(Step.CAP_OUTPUT, 1.0 - GAP, 1.0) is Step.CAP_OUTPUT
    assert next_step(Step.CAP_OUTPUT, 0.94, 1.0) is Step.NONE
    assert next_step(Step.SMALLER_MODEL, 1.16, 1.0) is Step.SMALLER_MODEL
    assert next_step(Step.SMALLER_MODEL, 1.14, 1.0) is Step.CUT_CONTEXT
    assert next_step(Step.SMALLER_MODEL, 0.0, 1.0) is Step.NONE, "a new day"


def test_ten_minutes_at_each_threshold_do_not_flap(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one move up at each. The control has no gap: it flaps."""

    def moves(around: float) -> int:
        noise, step, num = random.Random(7), Step.NONE, 0
        for _ in range(600):
            after = next_step(step, around + noise.uniform(-0.02, 0.02), 1.0)
            num += after is not step
            step = after
        return num

    assert max(moves(1.0), moves(1.1) - 1, moves(1.2) - 1) == 1
    monkeypatch.setattr(budget_ladder, "GAP", 0.0)
    assert min(moves(1.0), moves(1.1), moves(1.2)) > 100


class Team:
    """A tenant with a soft budget of 1,000 tokens a day, over a store, in virtual time."""

    def __init__(self, degradation: Degradation | None = AGREED, *, hard: bool = False) -> None:
        self.now = 10 * DAY_S
        limits = Limits(daily=Budget(tokens=1000, hard=hard, warn_at=0.9))
        self.tenant = Tenant(id=TenantId("team"), limits=limits, degradation=degradation)
        self.store = MemoryQuota(lambda: self.now)
        self.auth = Authenticator(TenantDirectory([self.tenant]), b"key", lambda: self.now)
        self.metrics = Metrics()
        limits = LimitLookup(auth=self.auth, quota=self.store)
        self.pressure = BudgetDegradation(limits, self.metrics, lambda: self.now)
        self.caller = Caller(tenant=self.tenant.id, key_id="")
        self._number = 0

    async def step(self) -> Step:
        return await self.pressure.step_of(self.caller, self.tenant)

    async def spend(self, tokens: int, *, elsewhere: bool = False) -> None:
        """Reserve and settle, and hear of it unless another gateway did."""
        self._number += 1
        account = self.auth.account_of(self.caller)
        await self.store.settle([a_settlement(account, self._number, prompt=tokens, output=0)])
        asked = a_reservation(account, RequestId(f"then-{self._number}"), prompt=0, output=0)
        status = await self.store.reserve(asked)
        if not elsewhere:
            self.pressure.told(self.tenant, status)


async def test_it_climbs_as_the_budget_is_overdrawn_and_stands_on_the_ground_the_next_day() -> None:
    team = Team()
    steps = [await team.step()]
    for _ in range(13):
        team.now += 1.0
        await team.spend(100)
        steps.append(await team.step())
    assert steps == [*[Step.NONE] * 10, Step.CAP_OUTPUT, Step.CUT_CONTEXT, *[Step.SMALLER_MODEL] * 2]
    gauge = "quire_budget_degraded_tenants"
    assert team.metrics.registry.get_sample_value(gauge, {"step": "smaller_model"}) == 1
    team.now += DAY_S
    assert await team.step() is Step.NONE, "the first request of the day gets all"
    assert team.metrics.registry.get_sample_value(gauge, {"step": "smaller_model"}) == 0


async def test_what_other_gateways_spent_is_asked_for_when_nothing_was_heard_for_long() -> None:
    team = Team()
    assert await team.step() is Step.NONE
    await team.spend(1000, elsewhere=True)
    team.now += FRESH_S / 2
    assert await team.step() is Step.NONE
    team.now += FRESH_S / 2
    assert await team.step() is Step.CAP_OUTPUT
    team.store.is_down = True
    team.now += 2 * FRESH_S
    assert await team.step() is Step.CAP_OUTPUT, "what is not known does not change"


@pytest.mark.parametrize(
    ("degradation", "hard"),
    [(None, False), (Degradation(cap_output_tokens=10), False), (AGREED, True)],
)
async def test_only_soft_budgets_of_who_agreed_press(degradation: Degradation | None, hard: bool) -> None:
    team = Team(degradation, hard=hard)
    await team.spend(999)
    assert await team.step() is Step.NONE
    team.pressure.told(team.tenant, LimitStatus(soft_spent=None))
    assert await team.step() is Step.NONE
