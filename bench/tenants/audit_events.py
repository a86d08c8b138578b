"""What happened at the quota store, in its order and by its clock: the values that an audit reads.

An event says what the store did, not what somebody was told. Knows no limit's meaning.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.core.keys import ApiKey
from services.domain.ids import TenantId
from services.domain.limits import Budget, Limits, Rate
from services.domain.tenant import Tenant

BUCKETS = ("requests", "tokens", "prompt_tokens", "output_tokens")
PERIODS = ("daily", "monthly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of one scope as numbers; what is not limited is infinity."""

    zone: float = 0.0
    """Minutes east of Greenwich."""
    concurrency: float = math.inf
    capacity: tuple[float, ...] = (math.inf,) * 4
    """Of each of `BUCKETS`."""
    per_minute: tuple[float, ...] = (math.inf,) * 4
    budgets: tuple[float, ...] = (math.inf,) * 2
    """Hard ones, of each of `PERIODS`."""

    @classmethod
    def of(cls, limits: Limits) -> "Bounds":
        rates = (
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.prompt_tokens_per_minute,
            limits.output_tokens_per_minute,
        )
        return cls(
            zone=limits.utc_offset_minutes,
            concurrency=math.inf if limits.max_concurrency is None else limits.max_concurrency,
            capacity=tuple(_capacity(rate) for rate in rates),
            per_minute=tuple(math.inf if rate is None else rate.per_minute for rate in rates),
            budgets=(_tokens(limits.daily), _tokens(limits.monthly)),
        )


def _capacity(rate: Rate | None) -> float:
    if rate is None:
        return math.inf
    return rate.per_minute if rate.burst is None else rate.burst


def _tokens(budget: Budget | None) -> float:
    return budget.tokens if budget is not None and budget.hard else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that the store did."""

    at_ms: int
    """By the store's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Event):
    """A request asked for its worst case, and got all of it or nothing."""

    id: str
    admitted: bool
    tenant: TenantId
    key_id: str = ""
    model: str = ""
    """As the caller named it."""
    num_choices: int = 1
    prompt_tokens: int = 0
    output_tokens: int = 0
    """Over all choices."""
    lease_ms: int = 30_000
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    """What it was to be judged by, by name of the scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(Event):
    """A running request's lease begins anew."""

    id: str
    lease_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired(Event):
    """A lease was ended because nobody renewed it."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Event):
    """A request was charged what it used."""

    id: str
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited(Event):
    """Tenants and keys were changed; None: gone."""

    tenants: Mapping[TenantId, Tenant | None] = field(default_factory=dict)
    keys: Mapping[str, ApiKey | None] = field(default_factory=dict)
