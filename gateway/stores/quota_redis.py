"""Quotas in Redis: one script per call, all scopes of an organisation under its hash tag.

Builds the script's values and reads its replies. Decides nothing: limits are compared where the counters are.
"""

from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any, TypeVar

import orjson

from gateway.stores.quota import LEASE_S, Reservation, Running, ScopeKey, ScopeUse, Settlement, Spent
from gateway.stores.quota_refusals import duplicate, refused
from services.chassis.redis import RedisStore, Script
from services.domain.errors import StaleAttempt
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account, Budget, Rate, Scope

_Item = TypeVar("_Item")

BACKGROUND_LIMIT_S = 1.0
"""Limit of a call that nobody waits for."""
MAX_ITEMS = 128
"""Most requests in one call, so that no call keeps Redis from others for long."""


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
        parts = [folder.joinpath(name).read_text("utf-8") for name in ("quota_counters.lua", "quota.lua")]
        self._script = Script("\n".join(parts))

    async def reserve(self, reservation: Reservation) -> None:
        account, key = reservation.account, reservation.idempotency_key
        values = {
            "id": reservation.id,
            "n": reservation.num_choices,
            "prompt": reservation.prompt_tokens,
            "output": reservation.output_tokens,
            "lease_ms": self._lease_ms,
            "has_key": bool(key),
            "scopes": [_limits_of(scope) for scope in account.scopes],
        }
        keys = [*_keys(account.organisation), _key_of(account, key)]
        outcome, *rest = await self._redis.run_script(self._script, keys, ["reserve", orjson.dumps(values)])
        if outcome == b"refused":
            index, which, limit, used, wait_ms = rest
            raise refused(
                reservation,
                account.scopes[index],
                which.decode(),
                limit=limit,
                used=used,
                wait_s=None if wait_ms < 0 else wait_ms / 1000,
            )
        if outcome == b"duplicate":
            raise duplicate(rest[0].decode())
        if outcome == b"over":
            raise StaleAttempt(f"request {reservation.id} has ended already")

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        ordered = sorted(settlements, key=lambda one: one.account.organisation)
        for organisation, group in groupby(ordered, lambda one: one.account.organisation):
            for batch in _batches(list(group)):
                await self._settle(organisation, batch)

    async def _settle(self, organisation: TenantId, settlements: Sequence[Settlement]) -> None:
        keys: list[str] = []
        items = []
        for one in settlements:
            keys += (
                _key_of(one.account, one.idempotency_key),
                _ending_of(organisation, one.account.tenant, one.id),
            )
            items.append(
                {
                    "id": one.id,
                    "prompt": one.prompt_tokens,
                    "output": one.output_tokens,
                    "has_key": bool(one.idempotency_key),
                    "scopes": _names_of(one.account),
                }
            )
        endings = [one.ending for one in settlements]
        await self._run(organisation, "settle", {"items": items}, keys, endings)

    async def renew(self, running: Sequence[Running]) -> Mapping[ScopeKey, Spent]:
        spent: dict[ScopeKey, Spent] = {}
        ordered = sorted(running, key=_organisation_of)
        for organisation, group in groupby(ordered, _organisation_of):
            for batch in _batches(list(group)):
                values = {"lease_ms": self._lease_ms, "items": [_item_of(one) for one in batch]}
                _, _, rows = await self._run(organisation, "renew", values)
                for name, day, month in rows:
                    spent[organisation, name.decode()] = Spent(day, month)
        return spent

    async def ending(self, organisation: TenantId, tenant: TenantId, request_id: RequestId) -> bytes | None:
        key = _ending_of(organisation, tenant, request_id)
        found: bytes | None = await self._background.execute("GET", key)
        return found

    async def use(self, account: Account) -> list[ScopeUse]:
        values = {"scopes": [_limits_of(scope) for scope in account.scopes]}
        uses = await self._run(account.organisation, "use", values)
        return [
            ScopeUse(
                num_leases=held,
                reserved_tokens=reserved,
                left_requests=left[0],
                left_tokens=left[1],
                left_prompt_tokens=left[2],
                left_output_tokens=left[3],
                day_charged=periods[0],
                day_spent=periods[1],
                month_charged=periods[2],
                month_spent=periods[3],
            )
            for held, reserved, left, periods in uses
        ]

    async def _run(
        self,
        organisation: TenantId,
        operation: str,
        values: Mapping[str, Any],
        keys: Sequence[str] = (),
        args: Sequence[bytes] = (),
    ) -> Any:
        return await self._background.run_script(
            self._script,
            [*_keys(organisation), *keys],
            [operation, orjson.dumps(values), *args],
            limit_s=BACKGROUND_LIMIT_S,
        )


def _organisation_of(running: Running) -> TenantId:
    return running.reservation.account.organisation


def _batches(items: Sequence[_Item]) -> list[Sequence[_Item]]:
    return [items[start : start + MAX_ITEMS] for start in range(0, len(items), MAX_ITEMS)]


def _item_of(running: Running) -> dict[str, Any]:
    reservation = running.reservation
    return {
        "id": reservation.id,
        "n": reservation.num_choices,
        "prompt": reservation.prompt_tokens,
        "output": reservation.output_tokens,
        "used": running.used_tokens,
        "scopes": _names_of(reservation.account),
    }


def _names_of(account: Account) -> list[dict[str, Any]]:
    return [{"name": one.name, "zone": one.limits.utc_offset_minutes} for one in account.scopes]


def _limits_of(scope: Scope) -> dict[str, Any]:
    """Return a scope as the script reads it; what is not limited is left out."""
    limits = scope.limits
    values = {
        "concurrency": limits.max_concurrency,
        "requests": _rate_of(limits.requests_per_minute),
        "tokens": _rate_of(limits.tokens_per_minute),
        "prompt": _rate_of(limits.prompt_tokens_per_minute),
        "output": _rate_of(limits.output_tokens_per_minute),
        "day": _budget_of(limits.daily),
        "month": _budget_of(limits.monthly),
    }
    named = {"name": scope.name, "zone": limits.utc_offset_minutes}
    return named | {name: value for name, value in values.items() if value is not None}


def _rate_of(rate: Rate | None) -> dict[str, int] | None:
    return None if rate is None else {"capacity": rate.capacity, "per_minute": rate.per_minute}


def _budget_of(budget: Budget | None) -> dict[str, Any] | None:
    return None if budget is None else {"tokens": budget.tokens, "hard": budget.hard}


def _keys(organisation: TenantId) -> list[str]:
    prefix = f"quire:quota:{{{organisation}}}"
    return [f"{prefix}:leases", f"{prefix}:reservations", f"{prefix}:ended", f"{prefix}:counters"]


def _key_of(account: Account, idempotency_key: str) -> str:
    return f"quire:quota:{{{account.organisation}}}:{account.tenant}:key:{idempotency_key}"


def _ending_of(organisation: TenantId, tenant: TenantId, request_id: RequestId) -> str:
    return f"quire:quota:{{{organisation}}}:{tenant}:ending:{request_id}"
