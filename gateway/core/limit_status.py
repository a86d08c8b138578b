"""How an account stands at its limits right after a reservation, in the words that answers tell it in.

Chooses the tightest scope of each kind and the budgets that warn. Knows neither where counters are nor which
door tells it: header and metadata have the same names.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from services.domain.limits import Account, Limits, Rate, Scope, ScopeKind

WARNING_HEADER = "x-quire-budget-warning"
OTHERS_HEADER = "x-quire-limits"
"""What is left at scopes of classes and models, where an answer does not know which of them will hold."""
_KINDS = ("requests", "tokens", "prompt-tokens", "output-tokens")


class ScopeState(NamedTuple):
    """One scope's counters; what has no limit there may be anything."""

    left_requests: float
    left_tokens: float
    """In the bucket of `tokens_per_minute`."""
    left_prompt_tokens: float
    left_output_tokens: float
    num_leases: float
    """Choices waiting or running."""
    day_charged: float
    """Spent by what ended, and the worst case of what is open."""
    day_spent: float
    month_charged: float
    month_spent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarning:
    """A budget of which `warn_at` is spent."""

    scope: str
    budget: str
    """`daily_budget` or `monthly_budget`."""
    used: int
    limit: int
    hard: bool

    def __str__(self) -> str:
        return f"{self.scope}/{self.budget} {self.used} of {self.limit} tokens"


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """What an answer tells of limits; empty while the store does not answer."""

    headers: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[BudgetWarning] = ()
    soft_spent: float | None = None
    """Part that is spent of the fullest soft budget of tenant and parents, 0 where there is none; None: the
    store did not say."""


def limit_status_of(account: Account, states: Sequence[ScopeState]) -> LimitStatus:
    """Say how `account` stands, whose scopes have `states` in the same order."""
    headers: dict[str, str] = {}
    pairs = [(scope.limits, state) for scope, state in zip(account.scopes, states, strict=True)]
    _tell(headers, "requests", [(one.requests_per_minute, state.left_requests) for one, state in pairs])
    _tell(headers, "tokens", [(one.tokens_per_minute, state.left_tokens) for one, state in pairs])
    apart = [(one.prompt_tokens_per_minute, state.left_prompt_tokens) for one, state in pairs]
    _tell(headers, "prompt-tokens", apart)
    apart = [(one.output_tokens_per_minute, state.left_output_tokens) for one, state in pairs]
    _tell(headers, "output-tokens", apart)
    _tell_amount(headers, "requests", [_seats(one, state) for one, state in pairs])
    _tell_amount(headers, "tokens", [part for one, state in pairs for part in _hard_budgets(one, state)])
    warnings = [
        warning
        for scope, state in zip(account.scopes, states, strict=True)
        for warning in _warnings(scope.name, scope.limits, state)
    ]
    if warnings:
        headers[WARNING_HEADER] = header_text("; ".join(map(str, warnings)))
    own = (ScopeKind.TENANT, ScopeKind.PARENT)
    soft = [
        part
        for scope, state in zip(account.scopes, states, strict=True)
        if scope.kind in own
        for part in _soft_parts(scope.limits, state)
    ]
    return LimitStatus(headers, warnings, max(soft, default=0.0))


def others_text(account: Account, scopes: Sequence[Scope], states: Sequence[ScopeState]) -> str:
    """Say how each of `scopes` stands by itself: `class/acme/short requests 3/10 tokens 500/1000; ...`."""
    parts = []
    for scope, state in zip(scopes, states, strict=True):
        told = limit_status_of(replace(account, scopes=(scope,)), [state]).headers
        left = [
            f"{kind} {told[f'x-ratelimit-remaining-{kind}']}/{told[f'x-ratelimit-limit-{kind}']}"
            for kind in _KINDS
            if f"x-ratelimit-limit-{kind}" in told
        ]
        if left:
            parts.append(" ".join((scope.name, *left)))
    return header_text("; ".join(parts))


def header_text(text: str) -> str:
    """Return `text` with a question mark for each character that headers and metadata cannot hold.

    Names of models and aliases are somebody's words.
    """
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def is_told(limits: Limits) -> bool:
    """Say whether answers tell anything of `limits`."""
    zone = limits.utc_offset_minutes
    return limits != Limits(utc_offset_minutes=zone)


def duration(seconds: float) -> str:
    """Return a time as OpenAI's headers have it: `17ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    text = f"{math.ceil(rest * 10) / 10:g}s"
    return f"{minutes:.0f}m{text}" if minutes else text


def _tell(headers: dict[str, str], kind: str, rates: Sequence[tuple[Rate | None, float]]) -> None:
    """Add limit, rest and time until it is full, of the rate with the least left."""
    known = [(left, rate.capacity, rate.per_minute) for rate, left in rates if rate is not None]
    if not known:
        return
    left, capacity, per_minute = min(known)
    headers[f"x-ratelimit-limit-{kind}"] = str(capacity)
    headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(left)))
    headers[f"x-ratelimit-reset-{kind}"] = duration(max(0.0, capacity - left) * 60 / per_minute)


def _tell_amount(headers: dict[str, str], kind: str, amounts: Sequence[tuple[float, int] | None]) -> None:
    """Add limit and rest of what no minute refills, where no rate has told of its kind."""
    known = [one for one in amounts if one is not None]
    if not known or f"x-ratelimit-limit-{kind}" in headers:
        return
    left, limit = min(known)
    headers[f"x-ratelimit-limit-{kind}"] = str(limit)
    headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(left)))


def _seats(limits: Limits, state: ScopeState) -> tuple[float, int] | None:
    most = limits.max_concurrency
    return None if most is None else (most - state.num_leases, most)


def _hard_budgets(limits: Limits, state: ScopeState) -> list[tuple[float, int]]:
    """Return what is left of budgets that refuse, and their size: nobody has to wait for a soft one."""
    budgets = ((limits.daily, state.day_charged), (limits.monthly, state.month_charged))
    return [(one.tokens - charged, one.tokens) for one, charged in budgets if one is not None and one.hard]


def _soft_parts(limits: Limits, state: ScopeState) -> list[float]:
    budgets = ((limits.daily, state.day_spent), (limits.monthly, state.month_spent))
    return [spent / budget.tokens for budget, spent in budgets if budget is not None and not budget.hard]


def _warnings(scope: str, limits: Limits, state: ScopeState) -> list[BudgetWarning]:
    budgets = (
        ("daily_budget", limits.daily, state.day_spent),
        ("monthly_budget", limits.monthly, state.month_spent),
    )
    return [
        BudgetWarning(scope=scope, budget=name, used=int(spent), limit=budget.tokens, hard=budget.hard)
        for name, budget, spent in budgets
        if budget is not None and spent >= budget.warn_at * budget.tokens
    ]
