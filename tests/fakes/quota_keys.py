"""Idempotency keys of `MemoryQuota`: of the requests that begin under one key, one is charged."""

from gateway.stores.quota import REMEMBER_S, Reservation, Settlement
from services.domain.ids import RequestId, TenantId


class Keys:
    """Which request each key of a tenant belongs to."""

    def __init__(self) -> None:
        self._owners: dict[tuple[TenantId, str], tuple[RequestId, float]] = {}

    def owner(self, tenant: TenantId, one: Reservation | Settlement, now: float) -> RequestId:
        """Return whose the key of a request is: its own, also where it has none."""
        owner, until = self._owners.get((tenant, one.idempotency_key), (one.id, now))
        return owner if until > now else one.id

    def owns(self, tenant: TenantId, one: Reservation | Settlement, now: float) -> bool:
        """Return whether a request is the one of its key, which then stays its own."""
        if self.owner(tenant, one, now) != one.id:
            return False
        if one.idempotency_key:
            self._owners[tenant, one.idempotency_key] = (one.id, now + REMEMBER_S)
        return True

    def disown(self, tenant: TenantId, one: Settlement) -> None:
        """Free the key of a request that cost nothing."""
        if self._owners.get((tenant, one.idempotency_key), ("", 0.0))[0] == one.id:
            del self._owners[tenant, one.idempotency_key]
