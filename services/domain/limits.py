"""What a tenant, one of its keys or one of its models may use: rates, budgets, concurrency.

Values only; who counts against them is the quota store's business, whose they are the tenant store's. Amounts
are billed tokens (prompt + output, cached or not) and choices (sequences).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from services.domain.ids import TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A bucket that refills by the store's clock."""

    per_minute: int
    burst: int | None = None
    """Most at once; None: a minute's worth."""

    @property
    def capacity(self) -> int:
        return self.per_minute if self.burst is None else self.burst


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Tokens in one calendar day or month of the tenant's zone."""

    tokens: int
    hard: bool = True
    """Hard refuses new work and stops streams; soft warns, and degrades where its tenant agreed."""
    warn_at: float = 0.8
    """The share from which answers carry a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Everything counted at one scope; None: not limited."""

    max_concurrency: int | None = None
    """Choices waiting or running at once."""
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    """Prompt and output together."""
    prompt_tokens_per_minute: Rate | None = None
    output_tokens_per_minute: Rate | None = None
    daily: Budget | None = None
    monthly: Budget | None = None
    utc_offset_minutes: int = 0
    """The zone whose midnight ends a day and a month, fixed all year."""


class ScopeKind(StrEnum):
    """What a set of limits belongs to."""

    TENANT = "tenant"
    PARENT = "parent"
    KEY = "key"
    CLASS = "class"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One set of counters that a request is charged to."""

    kind: ScopeKind
    id: str
    """Unique below `organisation`: of a tenant its id, of a key `<tenant>/<key id>`, and so on."""
    limits: Limits = field(default_factory=Limits)

    @property
    def name(self) -> str:
        """As refusals and the store's keys have it, e.g. `tenant/acme`."""
        return f"{self.kind}/{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What each gateway may admit of one tenant while the quota store does not answer.

    Both count what was admitted without the store until it, which was told of that, admits another request of
    the tenant: only then is the tenant within its limits with all of it, and the allowance free again. So
    however long an outage lasts and however often it comes, a tenant's limits are exceeded by at most
    `gateways * allowance`, a parent's by the sum of that over its tenants. Worked number: 3 gateways and
    10,000 tokens let at most 30,000 tokens pass beyond a budget.
    """

    max_concurrency: int
    """Choices at once, admitted here without the store."""
    tokens: int
    """Prompt and output tokens, at worst case while they run and as used once they ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """All scopes of one request: their counters lie under the hash tag of `organisation`."""

    tenant: TenantId
    organisation: TenantId
    """The topmost parent; the tenant itself where it has none."""
    scopes: Sequence[Scope]
    """The tenant's own first, then its parents', its key's, its class' and its model's."""
    allowance: Allowance | None = None
    """What may go on while the quota store does not answer; None: new requests are refused."""
    key_id: str = ""
    """As the tenant's usage is split; empty without a key."""
    model: str = ""
    """The model that serves it, by its own name; as the tenant's usage is split."""
