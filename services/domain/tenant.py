"""Who pays, and everything that holds for it.

Values only. How one is read from a document and what is refused is `tenant_document`'s business, what a
parent means to its children `tenant_book`'s; who counts is not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from services.domain.degradation import Degradation
from services.domain.generation import Usage
from services.domain.ids import TenantId
from services.domain.limits import Allowance, Limits

NANO = 1_000_000_000
"""Costs are whole billionths of the currency's unit, so that sums of them are exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a tenant is charged, in units of `currency`."""

    currency: str = ""
    """ISO 4217 code; only shown."""
    uncached_per_million: float = 0.0
    """Of a million prompt tokens that were computed."""
    cached_per_million: float = 0.0
    """Of a million prompt tokens that were found in the cache."""
    output_per_million: float = 0.0
    """Of a million output tokens."""
    page_hour: float = 0.0
    """Of one KV page held for an hour."""

    def cost(self, usage: Usage, page_ms: int = 0) -> int:
        """Return what `usage` costs, in billionths of the unit: exact, and rounded once (half to even).

        A price is the decimal that it is written as. Worked number: 1,000 uncached prompt tokens at 0.5 a
        million are 0.0005, so 500,000.

        Args:
            page_ms: Pages held, integrated over milliseconds.
        """
        per_million = (
            _written(self.uncached_per_million) * (usage.prompt_tokens - usage.cached_tokens)
            + _written(self.cached_per_million) * usage.cached_tokens
            + _written(self.output_per_million) * usage.output_tokens
        )
        pages = _written(self.page_hour) * page_ms / 3_600_000
        return round((per_million / 1_000_000 + pages) * NANO)


def _written(price: float) -> Fraction:
    """Return what a price was written as: 1/10 for 0.1, not the binary fraction next to it."""
    return Fraction(repr(price))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One organisation or team. What is None is not limited here; its parents' limits hold too."""

    id: TenantId
    name: str = ""
    """For people."""
    parent: TenantId | None = None
    """The organisation it belongs to."""
    band: str = "standard"
    """The best band it can get, by name; a name that the scheduler does not have counts as its last band."""
    weight: float = 1.0
    """Its share against others of its band that wait too."""
    limits: Limits = field(default_factory=Limits)
    long_from_tokens: int | None = None
    """Prompts from this length on are of the long class; None: the parent's, then the gateway's."""
    short_class: Limits = field(default_factory=Limits)
    """Of its short requests together, beside `limits`."""
    long_class: Limits = field(default_factory=Limits)
    """Of its long requests together, beside `limits`."""
    model_limits: Mapping[str, Limits] = field(default_factory=dict)
    """Beside `limits`, of its requests to one model: by whatever name, or by that alias alone."""
    default_max_output_tokens: int = 1024
    """Output limit of a call that gives none."""
    max_output_tokens: int | None = None
    """Largest output limit it may ask for."""
    max_prompt_tokens: int | None = None
    """Longest prompt it may send."""
    models: tuple[str, ...] | None = None
    """Models it may call; None: all."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Its own names for models; the parents' hold where it has none."""
    kv_pages: int | None = None
    """KV pages over all workers, enforced by the slices."""
    prices: Prices | None = None
    """None: the parent's."""
    degradation: Degradation | None = None
    """What of its requests may get less while the service is overloaded; None: the parent's."""
    certificates: tuple[str, ...] = ()
    """Names in certificates by which its callers are known without a key: each a subject alternative name or
    a common name, and of no other tenant."""
    outage_allowance: Allowance | None = None
    """What each gateway may admit of it while the quota store does not answer; None: nothing."""
