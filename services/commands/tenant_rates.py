"""What tenants got between two looks at a suite: tokens, shares against weights, hit rates.

Pure: knows the looks' values and the time between them; asks nobody and prints nothing.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from services.rpc.fleet_status import TenantStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One moment."""

    term: int
    """Of the scheduler: counts of two terms have nothing to do with each other."""
    tenants: tuple[TenantStatus, ...]
    pages: Mapping[str, int]
    """KV pages that tenants hold, over all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRates:
    """One tenant between two looks."""

    tenant: str
    band: str
    """Of its last request; empty: none was seen."""
    weight: float
    tokens_per_s: float
    """Prompt and output tokens."""
    output_tokens_per_s: float
    share: float | None
    """Part of its band's service that it got, 0 to 1; None: the band got none."""
    fair_share: float | None
    """Part that its weight is of those in its band that were served or waited; None: it was not."""
    waiting: int
    waiting_tokens: int
    pages: int
    hit_rate: float | None
    """Part of its prompts' tokens that was cached, 0 to 1; None: it had none."""
    degraded: tuple[str, ...]
    total_tokens: int
    """Since the scheduler's start."""


def rates(before: Look, now: Look, seconds: float) -> list[TenantRates]:
    """Return the tenants of `now`, those with most tokens first, then those with most waiting.

    Args:
        seconds: Between the looks, more than 0.
    """
    earlier = {one.tenant: one for one in before.tenants} if before.term == now.term else {}
    changes = {one.tenant: _change(earlier.get(one.tenant), one) for one in now.tenants}
    served: defaultdict[str, float] = defaultdict(float)
    weights: defaultdict[str, float] = defaultdict(float)
    for one in now.tenants:
        served[one.band] += changes[one.tenant].service
        if _takes_part(one, changes[one.tenant]):
            weights[one.band] += one.weight
    rows = [
        _rates_of(one, changes[one.tenant], now, seconds, served[one.band], weights[one.band])
        for one in now.tenants
    ]
    return sorted(rows, key=lambda row: (-row.tokens_per_s, -row.waiting, -row.total_tokens, row.tenant))


@dataclass(frozen=True, slots=True)
class _Change:
    uncached: int
    cached: int
    output: int
    service: float


def _change(before: TenantStatus | None, now: TenantStatus) -> _Change:
    """Return what was added. A count that fell had begun anew."""
    if before is None or before.service > now.service:
        return _Change(now.uncached_tokens, now.cached_tokens, now.output_tokens, now.service)
    return _Change(
        now.uncached_tokens - before.uncached_tokens,
        now.cached_tokens - before.cached_tokens,
        now.output_tokens - before.output_tokens,
        now.service - before.service,
    )


def _takes_part(one: TenantStatus, change: _Change) -> bool:
    return change.service > 0 or one.waiting > 0


def _rates_of(
    one: TenantStatus, change: _Change, now: Look, seconds: float, of_band: float, weights: float
) -> TenantRates:
    prompt = change.uncached + change.cached
    return TenantRates(
        tenant=one.tenant,
        band=one.band,
        weight=one.weight,
        tokens_per_s=(prompt + change.output) / seconds,
        output_tokens_per_s=change.output / seconds,
        share=change.service / of_band if of_band else None,
        fair_share=one.weight / weights if _takes_part(one, change) else None,
        waiting=one.waiting,
        waiting_tokens=one.waiting_tokens,
        pages=now.pages.get(one.tenant, 0),
        hit_rate=change.cached / prompt if prompt else None,
        degraded=one.degraded,
        total_tokens=one.uncached_tokens + one.cached_tokens + one.output_tokens,
    )
