"""What placed requests were charged, until they end.

Knows keys, workers and shares; decides nothing. Its size is that of the live table.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from scheduler.core.tenant_share import TenantShare
from services.domain.ids import RequestKey, TenantId, WorkerId


class Charge(NamedTuple):
    """One prompt, as charged at its placement."""

    share: TenantShare
    worker: WorkerId
    cost: float


class Charges:
    """Charges by request, and the shares at work by worker and tenant."""

    def __init__(self) -> None:
        self._of: dict[RequestKey, Charge] = {}
        self._on: dict[WorkerId, dict[TenantId, dict[TenantShare, int]]] = {}
        """Requests by share; none is 0."""

    def __len__(self) -> int:
        return len(self._of)

    def begin(self, key: RequestKey, charge: Charge) -> None:
        """A request was placed."""
        self._of[key] = charge
        tenants = self._on.setdefault(charge.worker, {})
        shares = tenants.setdefault(charge.share.tenant, {})
        shares[charge.share] = shares.get(charge.share, 0) + 1

    def end(self, key: RequestKey) -> Charge | None:
        """It is over; return what it was charged."""
        charge = self._of.pop(key, None)
        if charge is None:
            return None
        tenants = self._on[charge.worker]
        shares = tenants[charge.share.tenant]
        shares[charge.share] -= 1
        if not shares[charge.share]:
            del shares[charge.share]
        if not shares:
            del tenants[charge.share.tenant]
        if not tenants:
            del self._on[charge.worker]
        return charge

    def on(self, worker: WorkerId) -> list[RequestKey]:
        """Return what was placed on a worker. O(all): for a worker's death."""
        return [key for key, charge in self._of.items() if charge.worker == worker]

    def at_work(self, worker: WorkerId, tenant: TenantId) -> list[tuple[TenantShare, float]]:
        """Return the shares that a tenant's requests on a worker belong to, and which part of them does."""
        shares = self._on.get(worker, {}).get(tenant)
        if not shares:
            return []
        total = sum(shares.values())
        return [(share, count / total) for share, count in shares.items()]

    def tenants_on(self, worker: WorkerId) -> Iterator[tuple[TenantId, Mapping[TenantShare, int]]]:
        return iter(self._on.get(worker, {}).items())
