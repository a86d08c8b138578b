"""Tells operators of budgets that warn: a count for each answer that carries a warning, one line a day.

Knows nothing of what a warning does to a request: nothing.
"""

import time
from collections.abc import Callable, Sequence

import structlog

from gateway.core.limit_status import BudgetWarning
from services.chassis.metrics import Metrics
from services.domain.ids import TenantId

_log = structlog.get_logger()


class BudgetWarnings:
    """Counts and logs warnings.

    Args:
        clock: Seconds since 1970.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.time) -> None:
        self._warnings = metrics.counter(
            "quire_budget_warnings_total", "Answers that warned of a budget", ("budget", "hard")
        )
        self._clock = clock
        self._day = 0
        self._told: set[tuple[TenantId, str, str]] = set()
        """What has its line of this UTC day."""

    def warned(self, organisation: TenantId, tenant: TenantId, warnings: Sequence[BudgetWarning]) -> None:
        """Once per admitted request that was warned."""
        day = int(self._clock() // 86_400)
        if day != self._day:
            self._day = day
            self._told.clear()
        for one in warnings:
            self._warnings.add(1, one.budget, str(one.hard).lower())
            key = (organisation, one.scope, one.budget)
            if key not in self._told:
                self._told.add(key)
                _log.warning(
                    "budget_warning",
                    tenant=tenant,
                    scope=one.scope,
                    budget=one.budget,
                    used=one.used,
                    limit=one.limit,
                    hard=one.hard,
                )
