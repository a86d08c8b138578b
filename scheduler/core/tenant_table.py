"""What each tenant has waiting and has been given: counts for people and for throttling.

Knows no order, no worker and no time; charges nobody. Counts of use begin with this term of the scheduler.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from operator import itemgetter

from scheduler.core.request import Acquire, TenantUse
from services.domain.degradation import Step
from services.domain.generation import Band
from services.domain.ids import RequestKey, TenantId

MAX_ROWS = 10_000
"""Rows kept; beyond it those go first of whom nothing waits and that changed longest ago."""


class TenantRow:
    """One tenant."""

    __slots__ = ("band", "budget_step", "tenant", "use", "waiting", "waiting_tokens", "weight")

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant
        self.band: Band | None = None
        """Of its last request; None: it made none in this term."""
        self.weight = 1.0
        self.budget_step = Step.NONE
        self.waiting: dict[tuple[str, Band], OrderedDict[RequestKey, float]] = {}
        """When its requests began to wait, first come first, by model and band; none is empty."""
        self.waiting_tokens = 0
        """Of their prompts."""
        self.use = TenantUse()

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))


class TenantTable:
    """All tenants of this term."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._rows: dict[TenantId, TenantRow] = {}
        """What changed last is last."""

    def __iter__(self) -> Iterator[TenantRow]:
        return iter(self._rows.values())

    def num_waiting(self, tenant: TenantId, model: str, band: Band) -> int:
        """Return how many requests of a tenant wait for a model in a band, whatever the policy."""
        row = self._rows.get(tenant)
        return 0 if row is None else len(row.waiting.get((model, band), ()))

    def waits_since(self, tenant: TenantId, model: str, band: Band) -> float | None:
        """Return when the first of those requests began to wait; None: none waits."""
        row = self._rows.get(tenant)
        waiting = row.waiting.get((model, band)) if row is not None else None
        return None if waiting is None else next(iter(waiting.values()))

    def came(self, acquire: Acquire, arrived: float) -> None:
        """A request waits, since `arrived`."""
        row = self._row(acquire.tenant)
        row.band, row.weight, row.budget_step = acquire.band, acquire.weight, acquire.budget_step
        row.waiting.setdefault((acquire.model, acquire.band), OrderedDict())[acquire.key] = arrived
        row.waiting_tokens += acquire.num_prompt_tokens

    def left(self, acquire: Acquire) -> None:
        """A request waits no more."""
        row = self._rows[acquire.tenant]
        where = acquire.model, acquire.band
        del row.waiting[where][acquire.key]
        if not row.waiting[where]:
            del row.waiting[where]
        row.waiting_tokens -= acquire.num_prompt_tokens

    def weigh(self, tenant: TenantId, weight: float) -> list[RequestKey]:
        """A tenant, if it is known, has this weight now; return its requests that wait."""
        row = self._rows.get(tenant)
        if row is None:
            return []
        row.weight = weight
        return [key for waiting in row.waiting.values() for key in waiting]

    def sort(self, tenants: Collection[TenantId]) -> None:
        """Some of the requests of these tenants came to where others wait that began later."""
        for row in map(self._rows.__getitem__, tenants):
            for where, waiting in row.waiting.items():
                row.waiting[where] = OrderedDict(sorted(waiting.items(), key=itemgetter(1)))

    def used(self, tenant: TenantId, use: TenantUse) -> None:
        """A worker says what it did for a tenant since it spoke last."""
        row = self._row(tenant)
        row.use = row.use.plus(use)

    def _row(self, tenant: TenantId) -> TenantRow:
        row = self._rows.pop(tenant, None) or TenantRow(tenant)
        if len(self._rows) >= self._max_rows:
            idle = next((one.tenant for one in self if not one.waiting), None)
            if idle is not None:
                del self._rows[idle]
        self._rows[tenant] = row
        return row
