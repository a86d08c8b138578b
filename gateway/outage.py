"""What a gateway does while the quota store does not answer: each tenant's declared policy.

Wraps a store and keeps count of what it admitted without it, until the store knows. Knows nothing of limits:
while the store answers, its word is final.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.core.limit_status import LimitStatus
from gateway.stores.quota import (
    Batch,
    QuotaStore,
    Reservation,
    Running,
    ScopeKey,
    ScopeUse,
    Settlement,
    Spent,
)
from services.domain.errors import DependencyDown
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account
from services.domain.usage import UsageRecord


@dataclass(slots=True)
class _Grant:
    """One request that was admitted without the store, which does not know of it yet."""

    tenant: TenantId
    num_choices: int
    tokens: int
    """Worst case while it runs, then as used."""


class OutagePolicy:
    """A QuotaStore that refuses, or admits within a tenant's allowance, while the one behind it is down.

    What was admitted here and is not known there never exceeds the allowance, so over all gateways a tenant
    passes its limits by at most `gateways * allowance`, however long an outage is and however often it comes.
    A renewal or settlement that comes through tells the store, which then charges it like any other request;
    what the allowance held for it is free again.
    """

    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._grants: dict[RequestId, _Grant] = {}

    @property
    def num_granted(self) -> int:
        """Requests that were admitted here and are not known to the store."""
        return len(self._grants)

    async def reserve(self, reservation: Reservation) -> LimitStatus:
        try:
            return await self._store.reserve(reservation)
        except DependencyDown:
            if reservation.account.allowance is None:
                raise
            self._grant(reservation)
            return LimitStatus()

    def ended(self, settlement: Settlement) -> None:
        """A request has ended, whatever the store knows: only what it used counts from now on."""
        grant = self._grants.get(settlement.id)
        if grant is not None:
            grant.num_choices, grant.tokens = 0, settlement.num_tokens

    def lost(self, settlement: Settlement) -> None:
        """The store will never hear of it."""
        self._grants.pop(settlement.id, None)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        await self._store.settle(settlements)
        for one in settlements:
            self._grants.pop(one.id, None)

    async def settle_batch(self, batch: Batch) -> None:
        await self._store.settle_batch(batch)
        for one in batch.settlements:
            self._grants.pop(one.id, None)

    async def renew(self, running: Sequence[Running]) -> Mapping[ScopeKey, Spent]:
        spent = await self._store.renew(running)
        for one in running:
            self._grants.pop(one.reservation.id, None)
        return spent

    async def ending(self, organisation: TenantId, tenant: TenantId, request_id: RequestId) -> bytes | None:
        return await self._store.ending(organisation, tenant, request_id)

    async def usage(self, organisation: TenantId, tenant: TenantId, days: Sequence[int]) -> list[UsageRecord]:
        return await self._store.usage(organisation, tenant, days)

    async def use(self, account: Account) -> list[ScopeUse]:
        return await self._store.use(account)

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
