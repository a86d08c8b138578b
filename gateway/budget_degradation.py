"""Which tenants' requests get less because a soft budget of theirs is spent, as far as they agreed to it.

Listens to what reservations tell and asks the store for what it has not heard lately, so that a gateway that
has just begun, and the first request of a new day, go by what is true. Keeps a step for each tenant; what a
step does to a request is `core.reductions`'s, where it begins `core.budget_ladder`'s.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway.core.budget_ladder import STEPS, next_step
from gateway.core.limit_status import LimitStatus
from gateway.core.request import Caller
from gateway.limit_lookup import LimitLookup
from services.chassis.metrics import Metrics
from services.domain.degradation import Step
from services.domain.ids import TenantId
from services.domain.tenant import Tenant

FRESH_S = 5.0
"""The store is asked where nothing was heard of a tenant for so long."""

_log = structlog.get_logger()


@dataclass(slots=True)
class _Heard:
    step: Step = Step.NONE
    at: float = float("-inf")


class BudgetDegradation:
    """See the module.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(
        self, limits: LimitLookup, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._gauge = metrics.gauge(
            "quire_budget_degraded_tenants", "Tenants that get less for a spent soft budget", ("step",)
        )
        self._heard: dict[TenantId, _Heard] = {}
        """Of the tenants that agreed."""

    async def step_of(self, caller: Caller, tenant: Tenant) -> Step:
        """Return how far the budgets of `caller`'s tenant let its next request degrade."""
        if _budget_at(tenant) is None:
            if self._heard.pop(tenant.id, None) is not None:
                self._show()
            return Step.NONE
        heard = self._heard.setdefault(tenant.id, _Heard())
        if self._clock() - heard.at >= FRESH_S:
            heard.at = self._clock()  # Others need not ask at the same time, nor again while nobody answers.
            self.told(tenant, await self._limits.status_of(caller))
        return heard.step

    def told(self, tenant: Tenant, status: LimitStatus) -> None:
        """A reservation of a tenant says what it has spent."""
        budget_at, spent = _budget_at(tenant), status.soft_spent
        if budget_at is None or spent is None:
            return
        heard = self._heard.setdefault(tenant.id, _Heard())
        heard.at = self._clock()
        step = next_step(heard.step, spent, budget_at)
        if step is not heard.step:
            heard.step = step
            self._show()
            _log.info("budget_degraded", tenant=tenant.id, step=step.name.lower(), spent=round(spent, 3))

    def _show(self) -> None:
        steps = Counter(one.step for one in self._heard.values())
        for step in STEPS:
            self._gauge.set(steps[step], step.name.lower())


def _budget_at(tenant: Tenant) -> float | None:
    return None if tenant.degradation is None else tenant.degradation.budget_at
