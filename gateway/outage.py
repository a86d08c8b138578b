"""What a gateway does while the quota store does not answer: each tenant's declared policy.

Wraps a store and keeps count of what it admitted without it, until the store knows of that and has room for
more. Remembers which idempotency keys it admitted, for a store that is away or came back without them. Knows
nothing of limits: while the store answers, its word is final.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.limit_status import LimitStatus
from gateway.core.used_keys import UsedKeys
from gateway.stores.quota import (
    REMEMBER_S,
    Batch,
    QuotaStore,
    Reservation,
    Running,
    ScopeKey,
    ScopeUse,
    Settlement,
    Spent,
)
from gateway.stores.quota_refusals import duplicate
from services.domain.errors import DependencyDown
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account
from services.domain.usage import UsageRecord


@dataclass(slots=True)
class _Grant:
    """One request that was admitted without the store."""

    tenant: TenantId
    num_choices: int
    tokens: int
    """Worst case while it runs, then as used."""
    is_known: bool = False
    """Whether the store charges it by now, like any other request."""


class OutagePolicy:
    """A QuotaStore that refuses, or admits within a tenant's allowance, while the one behind it is down.

    A renewal or settlement that comes through tells the store of what was admitted here, and it charges that.
    This alone frees nothing: a store too slow for reservations may still hear of all of them, and no limit
    would ever be asked. The allowance is free again once the store admits another request of the tenant with
    all that counted: then the tenant is within its limits. So never more than the allowance passes them, over
    all gateways `gateways * allowance`, however long an outage is and however often it comes. Only a limit of
    one key, class or model that the admitted request has no part in may be passed by that again.

    Args:
        clock: Seconds, never set back.
    """

    def __init__(self, store: QuotaStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._keys = UsedKeys(REMEMBER_S)
        self._grants: dict[RequestId, _Grant] = {}

    @property
    def num_granted(self) -> int:
        """Requests that were admitted here and use up allowances."""
        return len(self._grants)

    @property
    def is_ahead(self) -> bool:
        """Whether some run that were admitted here and that the store does not know of."""
        return any(one.num_choices and not one.is_known for one in self._grants.values())

    async def reserve(self, reservation: Reservation) -> LimitStatus:
        key, tenant = reservation.idempotency_key, reservation.account.tenant
        if not key:
            return await self._admit(reservation)
        # Before the store is asked: two of one key that it lets wait would both be granted.
        owner = self._keys.claim(tenant, key, reservation.id, self._clock())
        if owner != reservation.id:
            raise duplicate(owner)
        try:
            return await self._admit(reservation)
        except BaseException:
            self._keys.release(tenant, key, reservation.id)
            raise

    async def _admit(self, reservation: Reservation) -> LimitStatus:
        tenant = reservation.account.tenant
        # What the store is told while it decides is not in its answer.
        known = [name for name, grant in self._grants.items() if grant.is_known and grant.tenant == tenant]
        try:
            status = await self._store.reserve(reservation)
        except DependencyDown:
            if reservation.account.allowance is None:
                raise
            self._grant(reservation)
            return LimitStatus()
        for name in known:
            self._grants.pop(name, None)
        return status

    def ended(self, settlement: Settlement) -> None:
        """A request has ended, whatever the store knows: only what it used counts from now on."""
        if not settlement.num_tokens:
            self._keys.release(settlement.account.tenant, settlement.idempotency_key, settlement.id)
        grant = self._grants.get(settlement.id)
        if grant is None:
            return
        grant.num_choices, grant.tokens = 0, settlement.num_tokens
        if not settlement.num_tokens:
            del self._grants[settlement.id]  # So the allowance bounds how many are kept.

    def lost(self, settlement: Settlement) -> None:
        """The store will never hear of it."""
        self._grants.pop(settlement.id, None)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        await self._store.settle(settlements)
        self._settled(settlements)

    async def settle_batch(self, batch: Batch) -> None:
        await self._store.settle_batch(batch)
        self._settled(batch.settlements)

    async def renew(self, running: Sequence[Running]) -> Mapping[ScopeKey, Spent]:
        spent = await self._store.renew(running)
        self._knows(one.reservation.id for one in running)
        return spent

    async def ending(self, organisation: TenantId, tenant: TenantId, request_id: RequestId) -> bytes | None:
        return await self._store.ending(organisation, tenant, request_id)

    async def usage(self, organisation: TenantId, tenant: TenantId, days: Sequence[int]) -> list[UsageRecord]:
        return await self._store.usage(organisation, tenant, days)

    async def use(self, account: Account) -> list[ScopeUse]:
        return await self._store.use(account)

    def _settled(self, settlements: Sequence[Settlement]) -> None:
        for one in settlements:
            self.ended(one)
        self._knows(one.id for one in settlements)

    def _knows(self, ids: Iterable[RequestId]) -> None:
        for request_id in ids:
            grant = self._grants.get(request_id)
            if grant is not None:
                grant.is_known = True

    def _grant(self, reservation: Reservation) -> None:
        """Admit within the allowance.

        Raises:
            DependencyDown: It is used up.
        """
        account = reservation.account
        assert account.allowance is not None
        mine = [grant for grant in self._grants.values() if grant.tenant == account.tenant]
        num_choices = sum(grant.num_choices for grant in mine) + reservation.num_choices
        tokens = sum(grant.tokens for grant in mine) + reservation.num_tokens
        if num_choices > account.allowance.max_concurrency or tokens > account.allowance.tokens:
            raise DependencyDown(
                "the quota store does not answer, and what may be admitted without it is used up:"
                f" {num_choices} of {account.allowance.max_concurrency} sequences,"
                f" {tokens} of {account.allowance.tokens} tokens"
            )
        self._grants[reservation.id] = _Grant(account.tenant, reservation.num_choices, reservation.num_tokens)
