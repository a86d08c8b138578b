"""Ends live requests whose hard budget is spent: by other requests, or because it was lowered.

Compares what the store says was spent with the limits as they are now. Keeps no count of its own, and knows
nothing of how often it is asked.
"""

from collections.abc import Iterator, Mapping

from gateway.live_request import LiveRequest
from gateway.live_table import LiveTable
from gateway.quota_hold import QuotaHold
from gateway.stores.quota import Running, ScopeKey, Spent
from services.domain.errors import BadCredential, ErrorDetail, QuotaExceeded
from services.domain.generation import FinishReason
from services.domain.limits import Account, Budget, Scope

_ScopeNames = tuple[str, ...]


class BudgetEnforcement:
    """Enforces the hard budgets of what is in the table."""

    def __init__(self, table: LiveTable) -> None:
        self._table = table

    def running(self, every: bool) -> list[Running]:
        """Return what was admitted and used so far: of every live request, or of those with a hard budget."""
        return [
            Running(
                hold.reservation,
                live.usage.prompt_tokens + live.usage.output_tokens if live.has_begun else 0,
            )
            for live, hold, account in self._admitted()
            if every or any(_hard_budgets(scope) for scope in account.scopes)
        ]

    def enforce(self, spent: Mapping[ScopeKey, Spent]) -> None:
        """End the requests that have a scope whose budget is reached."""
        for live, _, account in list(self._admitted()):
            error = next(filter(None, (_spent_at(account, scope, spent) for scope in account.scopes)), None)
            if error is not None:
                live.stop(FinishReason.BUDGET, error)

    def _admitted(self) -> Iterator[tuple[LiveRequest, QuotaHold, Account]]:
        """Give each admitted request with its account as the limits are now, found once for all of one."""
        known: dict[tuple[str, _ScopeNames], Account] = {}
        for live in self._table.all():
            hold = live.quota_hold
            if hold is not None and hold.is_admitted:
                account = hold.reservation.account
                key = (account.organisation, tuple(scope.name for scope in account.scopes))
                if key not in known:
                    known[key] = _now(hold)
                yield live, hold, known[key]


def _now(hold: QuotaHold) -> Account:
    try:
        return hold.account_now()
    except BadCredential:
        return hold.reservation.account  # The tenant is gone; what it began ends as it was agreed.


def _hard_budgets(scope: Scope) -> list[tuple[str, Budget]]:
    budgets = (("daily_budget", scope.limits.daily), ("monthly_budget", scope.limits.monthly))
    return [(name, budget) for name, budget in budgets if budget is not None and budget.hard]


def _spent_at(account: Account, scope: Scope, spent: Mapping[ScopeKey, Spent]) -> QuotaExceeded | None:
    """Return why a scope lets nothing go on, None where it does or nothing is known of it."""
    known = spent.get((account.organisation, scope.name))
    if known is None:
        return None
    for name, budget in _hard_budgets(scope):
        used = known.day if name == "daily_budget" else known.month
        if used >= budget.tokens:
            numbers = {"scope": scope.name, "used": str(used), "left": "0", "limit": str(budget.tokens)}
            return QuotaExceeded(
                f"{scope.name}: {used} of {budget.tokens} tokens of the {name.replace('_', ' ')} are spent",
                ErrorDetail(quota=f"{scope.name}/{name}", metadata=numbers),
            )
    return None
