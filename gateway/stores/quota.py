"""Quotas of tenants: reserve at worst case before work, settle to what was used exactly once.

Concurrency is a set of expiring leases, tokens a bucket that refills by the store's clock. `QuotaStore` is
what the gateway knows; `RedisQuota` keeps it in one script per call, all of a tenant under one hash tag.
Knows nothing of requests beyond their ids and counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from typing import Protocol

from gateway.core.auth import Tenant
from services.chassis.redis import RedisStore, Script
from services.domain.errors import DuplicateKey, ErrorDetail, QuotaExceeded, StaleAttempt
from services.domain.ids import RequestId, TenantId

LEASE_S = 30.0
"""Seconds that a lease lives without renewal: so long a dead gateway's slots stay taken."""
RENEW_EVERY_S = 10.0
BACKGROUND_LIMIT_S = 1.0
"""Limit of a call that nobody waits for."""
CONCURRENCY_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The worst case of one request."""

    id: RequestId
    tenant: Tenant
    num_choices: int
    num_tokens: int
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What one request used in the end."""

    id: RequestId
    tenant: TenantId
    used_tokens: int
    ending: bytes
    """What became of it, for whoever asks within 10 minutes."""
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A tenant's state now."""

    num_leases: int
    reserved_tokens: int
    left_tokens: int


class QuotaStore(Protocol):
    """Every implementation passes the same contract suite."""

    async def reserve(self, reservation: Reservation) -> None:
        """Take a request's worst case, all or nothing; the same id again changes nothing.

        Raises:
            QuotaExceeded: A limit is reached; nothing was taken.
            DuplicateKey: The idempotency key belongs to a request of the last 10 minutes that was charged.
            StaleAttempt: The id is settled already.
            DependencyDown: The store does not answer. It may have reserved: settle the id.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Give back what was not used, once per id, also for ids that were never reserved or have expired.

        Raises:
            DependencyDown: Some may not be settled; settling again is harmless.
        """
        ...

    async def renew(self, held: Mapping[TenantId, Sequence[RequestId]]) -> None:
        """Prolong the leases of running requests.

        Raises:
            DependencyDown: Some may not be renewed.
        """
        ...

    async def ending(self, tenant: TenantId, request_id: RequestId) -> bytes | None:
        """Return what became of a tenant's own request, None when it is not known."""
        ...

    async def use(self, tenant: Tenant) -> QuotaUse:
        """Return a tenant's state."""
        ...


def refused_concurrency(tenant: Tenant, num_choices: int, num_held: int) -> QuotaExceeded:
    """Say that a tenant has too many sequences waiting or running."""
    return QuotaExceeded(
        f"{num_held} of {tenant.max_concurrency} concurrent sequences are in use, {num_choices} more wanted",
        ErrorDetail(
            quota=f"tenant/{tenant.id}/concurrency",
            retry_after_s=CONCURRENCY_RETRY_S if num_choices <= tenant.max_concurrency else None,
            metadata={"need": str(num_choices), "used": str(num_held), "limit": str(tenant.max_concurrency)},
        ),
    )


def refused_tokens(tenant: Tenant, num_tokens: int, num_left: int, wait_s: float | None) -> QuotaExceeded:
    """Say that a tenant's tokens of this minute do not cover the request's worst case."""
    return QuotaExceeded(
        f"it may use {num_tokens} tokens, {num_left} of {tenant.tokens_per_minute} a minute are left",
        ErrorDetail(
            quota=f"tenant/{tenant.id}/tokens_per_minute",
            retry_after_s=wait_s,
            metadata={
                "need": str(num_tokens),
                "left": str(num_left),
                "limit": str(tenant.tokens_per_minute),
            },
        ),
    )


def refused_duplicate(original: str) -> DuplicateKey:
    """Say which request an idempotency key belongs to."""
    return DuplicateKey(
        f"the idempotency key was used by request {original} within the last 10 minutes",
        ErrorDetail(metadata={"request_id": original}),
    )


class RedisQuota:
    """Quotas in Redis."""

    def __init__(self, redis: RedisStore, *, lease_s: float = LEASE_S) -> None:
        self._redis = redis
        self._lease_ms = round(lease_s * 1000)
        self._script = Script(resources.files(__package__).joinpath("quota.lua").read_text("utf-8"))

    async def reserve(self, reservation: Reservation) -> None:
        tenant = reservation.tenant
        outcome, *numbers = await self._redis.run_script(
            self._script,
            [*_keys(tenant.id), _key_of(tenant.id, reservation.idempotency_key)],
            [
                "reserve",
                reservation.id,
                reservation.num_choices,
                reservation.num_tokens,
                tenant.max_concurrency,
                tenant.tokens_per_minute,
                self._lease_ms,
                1 if reservation.idempotency_key else 0,
            ],
        )
        if outcome == b"concurrency":
            raise refused_concurrency(tenant, reservation.num_choices, numbers[0])
        if outcome == b"tokens":
            wait_s = None if numbers[1] < 0 else numbers[1] / 1000
            raise refused_tokens(tenant, reservation.num_tokens, numbers[0], wait_s)
        if outcome == b"duplicate":
            raise refused_duplicate(numbers[0].decode())
        if outcome == b"over":
            raise StaleAttempt(f"request {reservation.id} has ended already")

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        for tenant, group in groupby(sorted(settlements, key=_tenant_of), _tenant_of):
            await self._settle(tenant, group)

    async def _settle(self, tenant: TenantId, settlements: Iterable[Settlement]) -> None:
        keys: list[str] = []
        args: list[str | int | bytes] = ["settle"]
        for one in settlements:
            keys += (_key_of(tenant, one.idempotency_key), _ending_of(tenant, one.id))
            args += (one.id, one.used_tokens, one.ending, 1 if one.idempotency_key else 0)
        await self._redis.run_script(self._script, [*_keys(tenant), *keys], args, limit_s=BACKGROUND_LIMIT_S)

    async def renew(self, held: Mapping[TenantId, Sequence[RequestId]]) -> None:
        for tenant, ids in held.items():
            await self._redis.run_script(
                self._script, _keys(tenant), ["renew", self._lease_ms, *ids], limit_s=BACKGROUND_LIMIT_S
            )

    async def ending(self, tenant: TenantId, request_id: RequestId) -> bytes | None:
        found: bytes | None = await self._redis.execute("GET", _ending_of(tenant, request_id))
        return found

    async def use(self, tenant: Tenant) -> QuotaUse:
        numbers = await self._redis.run_script(
            self._script, _keys(tenant.id), ["use", tenant.tokens_per_minute]
        )
        return QuotaUse(*map(int, numbers))


def _tenant_of(settlement: Settlement) -> TenantId:
    return settlement.tenant


def _keys(tenant: TenantId) -> list[str]:
    prefix = f"quire:quota:{{{tenant}}}"
    return [f"{prefix}:leases", f"{prefix}:reservations", f"{prefix}:ended", f"{prefix}:bucket"]


def _key_of(tenant: TenantId, idempotency_key: str) -> str:
    return f"quire:quota:{{{tenant}}}:key:{idempotency_key}"


def _ending_of(tenant: TenantId, request_id: RequestId) -> str:
    return f"quire:quota:{{{tenant}}}:ending:{request_id}"
