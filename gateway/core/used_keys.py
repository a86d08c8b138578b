"""Idempotency keys that this gateway admitted a request under, for as long as none may be charged again.

The quota store knows them too, over all gateways; this is what holds while the store is away and after it
lost them. Knows no store and reads no clock.
"""

from services.domain.ids import RequestId, TenantId

MAX_KEYS = 100_000
"""Most that are kept (160 a second for 10 minutes); the oldest goes first, then only the store knows it."""


class UsedKeys:
    """Owners of keys by tenant, oldest first.

    Args:
        keep_s: Seconds that a key stays used, from its claim on.
    """

    def __init__(self, keep_s: float, *, most: int = MAX_KEYS) -> None:
        self._keep_s = keep_s
        self._most = most
        self._owners: dict[tuple[TenantId, str], tuple[RequestId, float]] = {}
        """And when each is free again; all are kept equally long, so the first ends first."""

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, tenant: TenantId, key: str, request_id: RequestId, now: float) -> RequestId:
        """Take a key for a request unless it is used; return whose it is."""
        self._forget(now)
        owner, _ = self._owners.setdefault((tenant, key), (request_id, now + self._keep_s))
        if len(self._owners) > self._most:
            del self._owners[next(iter(self._owners))]
        return owner

    def release(self, tenant: TenantId, key: str, request_id: RequestId) -> None:
        """Free a key whose request was not charged; another's stays."""
        owner, _ = self._owners.get((tenant, key), (None, 0.0))
        if owner == request_id:
            del self._owners[tenant, key]

    def _forget(self, now: float) -> None:
        over = []
        for name, (_, until) in self._owners.items():
            if until > now:
                break
            over.append(name)
        for name in over:
            del self._owners[name]
