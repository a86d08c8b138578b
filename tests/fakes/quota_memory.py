"""A QuotaStore in memory, for tests of what stands above it; passes the same contract suite as Redis."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.auth import Tenant
from gateway.stores.quota import (
    QuotaUse,
    Reservation,
    Settlement,
    refused_concurrency,
    refused_duplicate,
    refused_tokens,
)
from services.domain.errors import DependencyDown, StaleAttempt
from services.domain.ids import RequestId, TenantId

REMEMBER_S = 600.0


@dataclass
class _Held:
    num_tokens: int
    num_choices: int
    lease_ends: float
    settled: bool = False


class _Account:
    def __init__(self) -> None:
        self.held: dict[RequestId, _Held] = {}
        self.level: float | None = None
        self.at = 0.0
        self.size = 0
        self.keys: dict[str, tuple[RequestId, float]] = {}
        self.endings: dict[RequestId, bytes] = {}


class MemoryQuota:
    """Quotas of one process; `is_down` plays an outage."""

    def __init__(self, clock: Callable[[], float], *, lease_s: float = 30.0) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._accounts: dict[TenantId, _Account] = {}
        self.is_down = False

    def _account(self, tenant: TenantId) -> _Account:
        if self.is_down:
            raise DependencyDown("the store is down")
        return self._accounts.setdefault(tenant, _Account())

    def _leases(self, account: _Account) -> int:
        now = self._clock()
        return sum(h.num_choices for h in account.held.values() if not h.settled and h.lease_ends > now)

    def _level(self, account: _Account, size: int) -> float:
        if account.level is None:
            return size
        return min(size, account.level + (self._clock() - account.at) * size / 60)

    async def reserve(self, reservation: Reservation) -> None:
        tenant, now = reservation.tenant, self._clock()
        account = self._account(tenant.id)
        held = account.held.get(reservation.id)
        if held is not None:
            if held.settled or held.lease_ends <= now:
                raise StaleAttempt("over")
            return
        key = reservation.idempotency_key
        owner, until = account.keys.get(key, (reservation.id, 0.0))
        if key and owner != reservation.id and until > now:
            raise refused_duplicate(owner)
        in_use = self._leases(account)
        if in_use + reservation.num_choices > tenant.max_concurrency:
            raise refused_concurrency(tenant, reservation.num_choices, in_use)
        size = tenant.tokens_per_minute
        left = self._level(account, size)
        if reservation.num_tokens > left:
            never = reservation.num_tokens > size
            wait_s = None if never else (reservation.num_tokens - left) * 60 / size
            raise refused_tokens(tenant, reservation.num_tokens, int(left), wait_s)
        account.level, account.at, account.size = left - reservation.num_tokens, now, size
        account.held[reservation.id] = _Held(
            reservation.num_tokens, reservation.num_choices, now + self._lease_s
        )
        if key:
            account.keys[key] = (reservation.id, now + REMEMBER_S)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        for one in settlements:
            account, now = self._account(one.tenant), self._clock()
            held = account.held.get(one.id)
            if held is not None and held.settled:
                continue
            if held is not None:
                refund = held.num_tokens - one.used_tokens
                account.level = min(account.size, self._level(account, account.size) + refund)
                account.at, held.settled = now, True
            else:
                account.held[one.id] = _Held(0, 0, 0.0, settled=True)
            if one.ending:
                account.endings[one.id] = one.ending
            if not one.used_tokens and account.keys.get(one.idempotency_key, ("", 0.0))[0] == one.id:
                del account.keys[one.idempotency_key]

    async def renew(self, held: Mapping[TenantId, Sequence[RequestId]]) -> None:
        for tenant, ids in held.items():
            account = self._account(tenant)
            for one in ids:
                if one in account.held:
                    account.held[one].lease_ends = self._clock() + self._lease_s

    async def ending(self, tenant: TenantId, request_id: RequestId) -> bytes | None:
        return self._account(tenant).endings.get(request_id)

    async def use(self, tenant: Tenant) -> QuotaUse:
        account, now = self._account(tenant.id), self._clock()
        reserved = sum(h.num_tokens for h in account.held.values() if not h.settled and h.lease_ends > now)
        left = self._level(account, tenant.tokens_per_minute)
        return QuotaUse(self._leases(account), reserved, int(left))
