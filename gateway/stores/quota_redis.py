"""Quotas in Redis: one script per call, all scopes of an organisation under its hash tag.

Builds the script's values and reads its replies. Decides nothing: limits are compared where the counters are.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any, TypeVar

from gateway.core.limit_status import LimitStatus, ScopeState, limit_status_of
from gateway.stores.quota import (
    LEASE_S,
    MAX_BATCH,
    REMEMBER_BATCH_S,
    REMEMBER_S,
    Batch,
    Reservation,
    Running,
    ScopeKey,
    ScopeUse,
    Settlement,
    Spent,
)
from gateway.stores.quota_refusals import LIMITS, duplicate, refused
from services.chassis.redis import RedisStore, Script
from services.chassis.redis_pipe import Value
from services.domain.errors import StaleAttempt
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account, Budget, Limits, Rate
from services.domain.tenant import NANO
from services.domain.usage import UsageCounts, UsageRecord

_Item = TypeVar("_Item")
_STATE = struct.Struct("<9d")

BACKGROUND_LIMIT_S = 1.0
"""Limit of a call that nobody waits for."""
SCRIPT = ("quota_counters.lua", "quota_usage.lua", "quota_batches.lua", "quota_keys.lua", "quota.lua")
"""The parts of the script, in order."""


class RedisQuota:
    """Quotas in Redis.

    Args:
        redis: For reservations, which somebody waits for.
        background: For everything else; a connection of its own, so that a Redis too slow for reservations
            still hears of settlements and renewals. None: the same one.
    """

    def __init__(
        self, redis: RedisStore, background: RedisStore | None = None, *, lease_s: float = LEASE_S
    ) -> None:
        self._redis = redis
        self._background = background or redis
        self._lease_ms = round(lease_s * 1000)
        folder = resources.files(__package__)
        parts = [folder.joinpath(name).read_text("utf-8") for name in SCRIPT]
        # How long an ended id is known is said once: the settler repeats itself for as long as that is safe.
        head = f"local REMEMBER_MS = {round(REMEMBER_S * 1000)}"
        marks = f"local MARK_MS = {round(REMEMBER_BATCH_S * 1000)}"
        self._script = Script("\n".join((head, marks, *parts)))

    async def reserve(self, reservation: Reservation) -> LimitStatus:
        account, key = reservation.account, reservation.idempotency_key
        usage = _usage_of(account.organisation, account.tenant)
        keys = [*_keys(account.organisation), _key_of(account, key), usage]
        args = [
            "reserve",
            reservation.id,
            reservation.num_choices,
            reservation.prompt_tokens,
            reservation.output_tokens,
            self._lease_ms,
            1 if key else 0,
            _split_of(account),
            *_limits_of(account),
        ]
        outcome, *rest = await self._redis.run_script(self._script, keys, args)
        if outcome == b"refused":
            index, which, limit, used, wait_ms, packed = rest
            raise refused(
                reservation,
                account.scopes[index],
                list(LIMITS)[which],
                limit=limit,
                used=used,
                wait_s=None if wait_ms < 0 else wait_ms / 1000,
                status=_status(account, packed),
            )
        if outcome == b"duplicate":
            raise duplicate(rest[0].decode())
        if outcome == b"over":
            raise StaleAttempt(f"request {reservation.id} has ended already")
        return _status(account, rest[0]) if rest else LimitStatus()  # None: it was reserved before.

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        for organisation, group in _by_organisation(settlements):
            for batch in _batches(group):
                await self._settle(organisation, batch)

    async def settle_batch(self, batch: Batch) -> None:
        assert len(batch.settlements) <= MAX_BATCH, "all of an organisation's go in one call, or in none"
        for organisation, group in _by_organisation(batch.settlements):
            await self._settle(organisation, group, batch)

    async def _settle(
        self, organisation: TenantId, settlements: Sequence[Settlement], batch: Batch | None = None
    ) -> None:
        keys = [_mark_of(organisation, "" if batch is None else batch.boot)]
        args: list[Value] = ["settle", 0 if batch is None else batch.number]
        for one in settlements:
            account = one.account
            keys += (
                _key_of(account, one.idempotency_key),
                _ending_of(organisation, account.tenant, one.id),
                _usage_of(organisation, account.tenant),
            )
            has_key = 1 if one.idempotency_key else 0
            args += (one.id, one.prompt_tokens, one.output_tokens, has_key, one.ending, _names_of(account))
            args += (_split_of(account), one.cached_tokens, one.page_ms, *divmod(one.cost_nanos, NANO))
        await self._run(organisation, args, keys)

    async def renew(self, running: Sequence[Running]) -> Mapping[ScopeKey, Spent]:
        spent: dict[ScopeKey, Spent] = {}
        ordered = sorted(running, key=_organisation_of)
        for organisation, group in groupby(ordered, _organisation_of):
            for batch in _batches(list(group)):
                args = [value for one in batch for value in _item_of(one)]
                keys = [_key_of(one.reservation.account, one.reservation.idempotency_key) for one in batch]
                _, rows = await self._run(organisation, ["renew", self._lease_ms, *args], keys)
                for name, day, month in rows:
                    spent[organisation, name.decode()] = Spent(day, month)
        return spent

    async def ending(self, organisation: TenantId, tenant: TenantId, request_id: RequestId) -> bytes | None:
        key = _ending_of(organisation, tenant, request_id)
        found: bytes | None = await self._background.execute("GET", key)
        return found

    async def usage(self, organisation: TenantId, tenant: TenantId, days: Sequence[int]) -> list[UsageRecord]:
        found = []
        for batch in _batches(days):
            rows = await self._run(organisation, ["usage", *batch], [_usage_of(organisation, tenant)])
            found += [_record_of(tenant, *row) for row in rows]
        return found

    async def use(self, account: Account) -> list[ScopeUse]:
        # An answer waits for it: the connection's own limit holds, not that of what nobody waits for.
        keys, args = _keys(account.organisation), ["use", *_limits_of(account)]
        uses = await self._background.run_script(self._script, keys, args)
        return [
            ScopeUse(
                num_leases=held,
                reserved_tokens=reserved,
                left_requests=left[0],
                left_tokens=left[1],
                left_prompt_tokens=left[2],
                left_output_tokens=left[3],
                day_charged=periods[1],
                day_spent=periods[2],
                month_charged=periods[4],
                month_spent=periods[5],
            )
            for held, reserved, left, periods in uses
        ]

    async def _run(self, organisation: TenantId, args: Sequence[Value], keys: Sequence[str] = ()) -> Any:
        return await self._background.run_script(
            self._script, [*_keys(organisation), *keys], args, limit_s=BACKGROUND_LIMIT_S
        )


def _organisation_of(running: Running) -> TenantId:
    return running.reservation.account.organisation


def _by_organisation(settlements: Sequence[Settlement]) -> list[tuple[TenantId, list[Settlement]]]:
    ordered = sorted(settlements, key=lambda one: one.account.organisation)
    return [(name, list(group)) for name, group in groupby(ordered, lambda one: one.account.organisation)]


def _batches(items: Sequence[_Item]) -> list[Sequence[_Item]]:
    return [items[start : start + MAX_BATCH] for start in range(0, len(items), MAX_BATCH)]


def _item_of(running: Running) -> tuple[Value, ...]:
    wanted = running.reservation
    return (
        wanted.id,
        wanted.num_choices,
        wanted.prompt_tokens,
        wanted.output_tokens,
        running.used_tokens,
        _names_of(wanted.account),
        1 if wanted.idempotency_key else 0,
    )


def _names_of(account: Account) -> str:
    return "".join(f"{one.name}\0{one.limits.utc_offset_minutes}\0" for one in account.scopes)


def _limits_of(account: Account) -> list[Value]:
    """Return the scopes as the script reads them: their names, then 12 numbers for each."""
    return [_names_of(account), *(_packed(scope.limits) for scope in account.scopes)]


_NUMBERS = struct.Struct("<12d")


def _packed(limits: Limits) -> bytes:
    """Return the numbers of one scope. What is not limited is limited to infinity."""
    return _NUMBERS.pack(
        limits.utc_offset_minutes,
        math.inf if limits.max_concurrency is None else limits.max_concurrency,
        *_rate_of(limits.requests_per_minute),
        *_rate_of(limits.tokens_per_minute),
        *_rate_of(limits.prompt_tokens_per_minute),
        *_rate_of(limits.output_tokens_per_minute),
        _budget_of(limits.daily),
        _budget_of(limits.monthly),
    )


def _rate_of(rate: Rate | None) -> tuple[float, float]:
    return (math.inf, math.inf) if rate is None else (rate.capacity, rate.per_minute)


def _budget_of(budget: Budget | None) -> float:
    return budget.tokens if budget is not None and budget.hard else math.inf


def _keys(organisation: TenantId) -> list[str]:
    prefix = f"quire:quota:{{{organisation}}}"
    return [f"{prefix}:leases", f"{prefix}:reservations", f"{prefix}:ended", f"{prefix}:counters"]


def _mark_of(organisation: TenantId, boot: str) -> str:
    """Return the key of the last batch that came from one life of a gateway."""
    return f"quire:quota:{{{organisation}}}:settled:{boot}"


def _status(account: Account, packed: bytes) -> LimitStatus:
    return limit_status_of(account, [ScopeState(*numbers) for numbers in _STATE.iter_unpack(packed)])


def _usage_of(organisation: TenantId, tenant: TenantId) -> str:
    """Return what the names of a tenant's days of usage begin with."""
    return f"quire:quota:{{{organisation}}}:{tenant}:usage"


def _split_of(account: Account) -> str:
    """Return the field of a day's usage that a request counts in."""
    return f"{account.key_id}\0{account.model}"


def _record_of(tenant: TenantId, day: int, split: bytes, counts: Sequence[int]) -> UsageRecord:
    key_id, _, model = split.decode().partition("\0")
    requests, uncached, cached, output, page_ms, units, nanos, *refusals = counts
    return UsageRecord(
        tenant=tenant,
        day=day,
        key_id=key_id,
        model=model,
        counts=UsageCounts(
            requests=requests,
            uncached_tokens=uncached,
            cached_tokens=cached,
            output_tokens=output,
            page_ms=page_ms,
            cost_nanos=units * NANO + nanos,
            refusals={
                limit.name: count for limit, count in zip(LIMITS.values(), refusals, strict=True) if count
            },
        ),
    )


def _key_of(account: Account, idempotency_key: str) -> str:
    return f"quire:quota:{{{account.organisation}}}:{account.tenant}:key:{idempotency_key}"


def _ending_of(organisation: TenantId, tenant: TenantId, request_id: RequestId) -> str:
    return f"quire:quota:{{{organisation}}}:{tenant}:ending:{request_id}"
