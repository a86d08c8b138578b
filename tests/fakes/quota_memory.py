"""A QuotaStore in memory, for tests of what stands above it; passes the same contract suite as Redis."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.limit_status import LimitStatus, limit_status_of
from gateway.limit_lookup import states_of
from gateway.stores.quota import (
    LEASE_S,
    REMEMBER_S,
    Batch,
    Reservation,
    Running,
    ScopeKey,
    ScopeUse,
    Settlement,
    Spent,
)
from gateway.stores.quota_refusals import duplicate, refused
from services.domain.errors import DependencyDown, QuotaExceeded, StaleAttempt
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account, Scope
from services.domain.usage import UsageCounts, UsageRecord
from tests.fakes.quota_counters import (
    MAX_APART,
    NOTHING,
    Amounts,
    Counter,
    Period,
    amounts_of,
    end_of,
    local_time,
    month_of,
    rates_of,
)
from tests.fakes.quota_keys import Keys


@dataclass
class _Record:
    """An open reservation; `scopes` are names with the periods in which it began."""

    num_choices: int
    prompt: int
    output: int
    scopes: list[tuple[str, Mapping[str, int]]]
    lease_ends: float
    used: int = 0


@dataclass
class _Organisation:
    counters: dict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))
    open: dict[RequestId, _Record] = field(default_factory=dict)
    ended: dict[RequestId, tuple[bool, float]] = field(default_factory=dict)
    """Whether it was settled, and when."""
    keys: Keys = field(default_factory=Keys)
    endings: dict[tuple[TenantId, RequestId], bytes] = field(default_factory=dict)
    usage: dict[tuple[TenantId, int, str, str], UsageCounts] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    """Boot -> number of the last batch that came."""


class MemoryQuota:
    """Quotas of one process.

    Args:
        clock: Seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float], *, lease_s: float = LEASE_S) -> None:
        self._clock = clock
        self.lease_s = lease_s
        self._organisations: dict[TenantId, _Organisation] = defaultdict(_Organisation)
        self.is_down = False
        """Plays an outage."""

    async def reserve(self, reservation: Reservation) -> LimitStatus:
        account, now = reservation.account, self._clock()
        below = self._below(account.organisation)
        if reservation.id in below.ended:
            raise StaleAttempt("over")
        if reservation.id in below.open:
            return LimitStatus()
        owner = below.keys.owner(account.tenant, reservation, now)
        if owner != reservation.id:
            raise duplicate(owner)
        refusals = [one for scope in account.scopes for one in self._refusals(below, reservation, scope)]
        if refusals:
            told = max(refusals, key=_wait_of)
            limit = (told.detail.quota or "").rpartition("/")[2]
            self._note(below, account, UsageCounts(refusals={limit: 1}))
            raise told
        self._open(below, reservation)
        below.keys.owns(account.tenant, reservation, now)
        return self._status(below, account)

    def _status(self, below: _Organisation, account: Account) -> LimitStatus:
        return limit_status_of(account, states_of([self._use_of(below, scope) for scope in account.scopes]))

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        for one in settlements:
            below, now = self._below(one.account.organisation), self._clock()
            if below.ended.get(one.id, (False, 0.0))[0]:
                continue
            is_charged = one.num_tokens > 0 and below.keys.owns(one.account.tenant, one, now)
            used = amounts_of(one.prompt_tokens, one.output_tokens) if is_charged else NOTHING
            record = below.open.pop(one.id, None)
            if record is not None:
                self._close(below, record, used)
            elif is_charged:
                for name, began in self._began(one.account):
                    self._charge(below.counters[name], began, used, NOTHING)
                    self._spend(below.counters[name], began, one.num_tokens)
            below.ended[one.id] = (True, now)
            if is_charged:
                counts = UsageCounts(
                    requests=1,
                    uncached_tokens=one.prompt_tokens - one.cached_tokens,
                    cached_tokens=one.cached_tokens,
                    output_tokens=one.output_tokens,
                    page_ms=one.page_ms,
                    cost_nanos=one.cost_nanos,
                )
                self._note(below, one.account, counts)
            if one.ending:
                below.endings[one.account.tenant, one.id] = one.ending
            if not one.num_tokens:
                below.keys.disown(one.account.tenant, one)

    async def settle_batch(self, batch: Batch) -> None:
        for name in dict.fromkeys(one.account.organisation for one in batch.settlements):
            marks = self._below(name).marks
            if marks.get(batch.boot, 0) < batch.number:
                marks[batch.boot] = batch.number
                await self.settle([one for one in batch.settlements if one.account.organisation == name])

    async def renew(self, running: Sequence[Running]) -> Mapping[ScopeKey, Spent]:
        spent: dict[ScopeKey, Spent] = {}
        for one in running:
            account = one.reservation.account
            below = self._below(account.organisation, reaps=False)
            if not below.ended.get(one.reservation.id, (False, 0.0))[0]:
                below.keys.owns(account.tenant, one.reservation, self._clock())
                if one.reservation.id not in below.open:
                    self._open(below, one.reservation)
                record = below.open[one.reservation.id]
                for name, began in record.scopes:
                    self._spend(below.counters[name], began, one.used_tokens - record.used)
                record.used, record.lease_ends = one.used_tokens, self._clock() + self.lease_s
        for one in running:
            account = one.reservation.account
            for scope in account.scopes:
                day, month = self._periods(self._organisations[account.organisation], scope)
                spent[account.organisation, scope.name] = Spent(day.spent, month.spent)
        return spent

    async def ending(self, organisation: TenantId, tenant: TenantId, request_id: RequestId) -> bytes | None:
        return self._below(organisation).endings.get((tenant, request_id))

    async def usage(self, organisation: TenantId, tenant: TenantId, days: Sequence[int]) -> list[UsageRecord]:
        return [
            UsageRecord(tenant=tenant, day=day, key_id=key_id, model=model, counts=counts)
            for (name, day, key_id, model), counts in self._below(organisation).usage.items()
            if name == tenant and day in days
        ]

    def _note(self, below: _Organisation, account: Account, counts: UsageCounts) -> None:
        day = math.floor(self._clock() / 86_400)
        where = (account.tenant, day, account.key_id, account.model)
        below.usage[where] = below.usage.get(where, UsageCounts()) + counts

    async def use(self, account: Account) -> list[ScopeUse]:
        below = self._below(account.organisation)
        return [self._use_of(below, scope) for scope in account.scopes]

    def _below(self, organisation: TenantId, *, reaps: bool = True) -> _Organisation:
        if self.is_down:
            raise DependencyDown("the store is down")
        below, now = self._organisations[organisation], self._clock()
        if reaps:
            for request_id, record in list(below.open.items()):
                if record.lease_ends <= now:
                    self._close(below, below.open.pop(request_id), NOTHING)
                    below.ended[request_id] = (False, now)
            for request_id, (_, at) in list(below.ended.items()):
                if at <= now - REMEMBER_S:
                    del below.ended[request_id]
        return below

    def _refusals(self, below: _Organisation, wanted: Reservation, scope: Scope) -> Iterator[QuotaExceeded]:
        limits, counter, now = scope.limits, below.counters[scope.name], self._clock()

        def no(which: str, limit: int, used: float, wait_s: float | None) -> QuotaExceeded:
            told = self._status(below, wanted.account)
            return refused(
                wanted, scope, which, limit=limit, used=math.ceil(used), wait_s=wait_s, status=told
            )

        most = limits.max_concurrency
        if most is not None and counter.held + wanted.num_choices > most:
            yield no("concurrency", most, counter.held, None if wanted.num_choices > most else 1.0)
        for kind, rate in rates_of(limits):
            need = amounts_of(wanted.prompt_tokens, wanted.output_tokens)[kind]
            level = counter.bucket(kind, rate, now).level
            if need > level:
                can_come = need <= rate.capacity and rate.per_minute > 0
                wait_s = (need - level) * 60 / rate.per_minute if can_come else None
                yield no(kind, rate.capacity, rate.capacity - level, wait_s)
        for which, budget, entry in zip(
            ("day", "month"), (limits.daily, limits.monthly), self._periods(below, scope), strict=True
        ):
            if budget is not None and budget.hard and entry.charged + wanted.num_tokens > budget.tokens:
                is_spent = entry.spent + wanted.num_tokens > budget.tokens
                wait_s = end_of(which, entry.number, limits.utc_offset_minutes) - now if is_spent else 1.0
                never = wanted.num_tokens > budget.tokens
                yield no(which, budget.tokens, entry.charged, None if never else wait_s)

    def _began(self, account: Account) -> list[tuple[str, Mapping[str, int]]]:
        below = self._organisations[account.organisation]
        return [
            (scope.name, {"day": day.number, "month": month.number})
            for scope in account.scopes
            for day, month in [self._periods(below, scope)]
        ]

    def _periods(self, below: _Organisation, scope: Scope) -> tuple[Period, Period]:
        counter, local = (
            below.counters[scope.name],
            local_time(self._clock(), scope.limits.utc_offset_minutes),
        )
        latest = local + MAX_APART
        day = counter.period("day", local.toordinal(), latest.toordinal())
        return day, counter.period("month", month_of(local), month_of(latest))

    def _open(self, below: _Organisation, wanted: Reservation) -> None:
        record = _Record(
            wanted.num_choices,
            wanted.prompt_tokens,
            wanted.output_tokens,
            self._began(wanted.account),
            self._clock() + self.lease_s,
        )
        for name, began in record.scopes:
            counter = below.counters[name]
            counter.held += record.num_choices
            counter.reserved += wanted.num_tokens
            self._charge(counter, began, amounts_of(record.prompt, record.output), NOTHING)
        below.open[wanted.id] = record
        below.ended.pop(wanted.id, None)

    def _close(self, below: _Organisation, record: _Record, used: Amounts) -> None:
        for name, began in record.scopes:
            counter = below.counters[name]
            counter.held -= record.num_choices
            counter.reserved -= record.prompt + record.output
            self._charge(counter, began, used, amounts_of(record.prompt, record.output))
            self._spend(counter, began, used["tokens"] - record.used)

    def _charge(self, counter: Counter, began: Mapping[str, int], amounts: Amounts, before: Amounts) -> None:
        for kind, bucket in counter.buckets.items():
            level = bucket.refill(self._clock()) + before[kind] - amounts[kind]
            bucket.level = min(bucket.rate.capacity, level)
        for which, number in began.items():
            entry = counter.periods[which]
            if entry.number == number:
                entry.charged += amounts["tokens"] - before["tokens"]

    def _spend(self, counter: Counter, began: Mapping[str, int], tokens: int) -> None:
        for which, number in began.items():
            entry = counter.periods[which]
            if entry.number == number:
                entry.spent += tokens

    def _use_of(self, below: _Organisation, scope: Scope) -> ScopeUse:
        counter = below.counters[scope.name]
        left = {
            kind: math.floor(counter.bucket(kind, rate, self._clock()).level)
            for kind, rate in rates_of(scope.limits)
        }
        day, month = self._periods(below, scope)
        return ScopeUse(
            num_leases=counter.held,
            reserved_tokens=counter.reserved,
            left_requests=left.get("requests"),
            left_tokens=left.get("tokens"),
            left_prompt_tokens=left.get("prompt"),
            left_output_tokens=left.get("output"),
            day_charged=day.charged,
            day_spent=day.spent,
            month_charged=month.charged,
            month_spent=month.spent,
        )


def _wait_of(error: QuotaExceeded) -> float:
    wait_s = error.detail.retry_after_s
    return math.inf if wait_s is None else wait_s
