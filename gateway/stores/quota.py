"""Quotas of tenants: reserve at worst case before work, settle to what was used exactly once.

`QuotaStore` is what the gateway knows, with the values that go in and come out. Knows nothing of requests
beyond their ids and counts, and nothing of where the counters are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.limit_status import LimitStatus
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account
from services.domain.usage import UsageRecord

LEASE_S = 30.0
"""Seconds that a lease lives without renewal: so long a dead gateway's reservations stay taken."""
REMEMBER_S = 600.0
"""Seconds that an ended id stays known: so long a repeated settlement does nothing."""
REMEMBER_BATCH_S = 7 * 86_400.0
"""Seconds after which a repeated batch of settlements would be charged again: no outage may last longer."""
MAX_BATCH = 128
"""Most settlements in one batch, so that no call keeps the store from others for long."""
RENEW_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The worst case of one request."""

    id: RequestId
    account: Account
    num_choices: int
    prompt_tokens: int
    output_tokens: int
    """Over all choices."""
    idempotency_key: str = ""

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What one request used in the end."""

    id: RequestId
    account: Account
    """As it was reserved."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Of the prompt's."""
    page_ms: int = 0
    """KV pages held, integrated over milliseconds."""
    cost_nanos: int = 0
    """Billionths of the unit that the tenant's prices are in."""
    ending: bytes
    """What became of it, for whoever asks within 10 minutes."""
    idempotency_key: str = ""

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Batch:
    """Settlements that are made together, once, however often they are sent."""

    boot: str
    """Who numbers: one life of one gateway's settler."""
    number: int
    """From 1 on; a batch is sent only when the store has all before it."""
    settlements: Sequence[Settlement]


@dataclass(frozen=True, slots=True)
class Running:
    """An admitted request that has not ended, and the tokens it used so far."""

    reservation: Reservation
    used_tokens: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens used at one scope, those of running requests as far as they were told."""

    day: int
    month: int


ScopeKey = tuple[TenantId, str]
"""Organisation and name of a scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeUse:
    """State of one scope now. What is left of a rate is None where there is no limit."""

    num_leases: int
    """Choices waiting or running."""
    reserved_tokens: int
    """Worst case of what is open."""
    left_requests: int | None
    left_tokens: int | None
    left_prompt_tokens: int | None
    left_output_tokens: int | None
    """Below 0 where more was used than the bucket held."""
    day_charged: int
    """Spent by what ended, and the worst case of what is open."""
    day_spent: int
    month_charged: int
    month_spent: int


class QuotaStore(Protocol):
    """Every implementation passes the same contract suite.

    A request counts in the day and the month in which it was admitted. What was used is charged also when
    the lease had ended or the store had lost the reservation, so that a bucket may fall below 0; then nothing
    is admitted until it is refilled.

    An idempotency key belongs to the request that the store first heard of under it, by whatever call, until
    `REMEMBER_S` after the last one. Another that ran under it, because its gateway did not reach the store,
    is charged nothing.
    """

    async def reserve(self, reservation: Reservation) -> LimitStatus:
        """Take a request's worst case from all scopes or from none; the same id again changes nothing.

        Returns:
            How its scopes stand after that; nothing where the id was reserved before.

        Raises:
            QuotaExceeded: A limit is reached; nothing was taken.
            DuplicateKey: The idempotency key belongs to another request.
            StaleAttempt: The id is settled already, or its lease has ended.
            DependencyDown: The store does not answer. It may have reserved: settle the id.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Charge what was used in place of the worst case, once per id.

        Raises:
            DependencyDown: Some may not be settled; settling again within `REMEMBER_S` is harmless.
        """
        ...

    async def settle_batch(self, batch: Batch) -> None:
        """Settle all of a batch that the store does not have yet.

        Raises:
            DependencyDown: Some may not be settled; the batch again within `REMEMBER_BATCH_S` is harmless.
        """
        ...

    async def renew(self, running: Sequence[Running]) -> Mapping[ScopeKey, Spent]:
        """Prolong the leases of running requests and say what their scopes have spent.

        A reservation whose lease had ended, or that the store lost, is open again, whatever the limits are:
        the request does run.

        Raises:
            DependencyDown: Some may not be renewed.
        """
        ...

    async def ending(self, organisation: TenantId, tenant: TenantId, request_id: RequestId) -> bytes | None:
        """Return what became of a tenant's own request, None when it is not known."""
        ...

    async def usage(self, organisation: TenantId, tenant: TenantId, days: Sequence[int]) -> list[UsageRecord]:
        """Return what a tenant used on these days (since 1970-01-01), by UTC day, key and model.

        A request counts once, on the day of the store's clock on which it was settled; a refusal on its own.
        """
        ...

    async def use(self, account: Account) -> list[ScopeUse]:
        """Return the state of each of the account's scopes, in their order."""
        ...
