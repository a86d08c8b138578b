"""What tenants used, as records of days and as rows of a report, and which days a period has.

Adds up; knows neither where records are kept nor who may read them, and reads no clock.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from services.domain.document_values import nearest_name, refused
from services.domain.ids import TenantId

KEEP_DAYS = 400
"""A day is kept so long after it was written last: thirteen whole months can be read."""
_EPOCH = datetime.date(1970, 1, 1).toordinal()


class Split(StrEnum):
    """By what a report may be split."""

    TENANT = "tenant"
    DAY = "day"
    MONTH = "month"
    KEY = "key"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageCounts:
    """Sums over requests. One that used nothing is none."""

    requests: int = 0
    uncached_tokens: int = 0
    """Prompt tokens that were computed."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the cache."""
    output_tokens: int = 0
    page_ms: int = 0
    """KV pages held, integrated over milliseconds."""
    cost_nanos: int = 0
    """Billionths of the unit that the tenant's prices are in."""
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Name of a limit -> calls that it refused."""

    def __add__(self, other: "UsageCounts") -> "UsageCounts":
        names = [*self.refusals, *(name for name in other.refusals if name not in self.refusals)]
        return UsageCounts(
            requests=self.requests + other.requests,
            uncached_tokens=self.uncached_tokens + other.uncached_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            page_ms=self.page_ms + other.page_ms,
            cost_nanos=self.cost_nanos + other.cost_nanos,
            refusals={name: self.refusals.get(name, 0) + other.refusals.get(name, 0) for name in names},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one tenant used on one UTC day, with one key, of one model."""

    tenant: TenantId
    day: int
    """Days since 1970-01-01."""
    key_id: str
    """Empty: without a key."""
    model: str
    counts: UsageCounts

    def name(self, split: Split) -> str:
        """Return which row of a report it belongs to."""
        match split:
            case Split.TENANT:
                return self.tenant
            case Split.DAY:
                return date_of(self.day).isoformat()
            case Split.MONTH:
                return date_of(self.day).isoformat()[:7]
            case Split.KEY:
                return self.key_id or "-"
            case Split.MODEL:
                return self.model


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One row of a report."""

    names: Mapping[Split, str]
    counts: UsageCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """What was used over a period, both days inclusive."""

    first: datetime.date
    last: datetime.date
    currency: str
    """As the tenant's prices have it now; empty where there are none."""
    rows: Sequence[UsageRow]


def grouped(records: Iterable[UsageRecord], by: Sequence[Split]) -> list[UsageRow]:
    """Add up records of equal names, rows in the order of their names; without a split, to one row."""
    sums: dict[tuple[str, ...], UsageCounts] = {} if by else {(): UsageCounts()}
    for record in records:
        names = tuple(record.name(split) for split in by)
        sums[names] = sums.get(names, UsageCounts()) + record.counts
    return [UsageRow(dict(zip(by, names, strict=True)), sums[names]) for names in sorted(sums)]


def days_of(period: str, today: datetime.date) -> range:
    """Return the days (since 1970-01-01) of `day`, `month` (both up to today) or `FROM..TO`.

    Raises:
        InvalidField: Another form, no such date, or more days than are kept.
    """
    if period in ("", "month"):
        first, last = today.replace(day=1), today
    elif period == "day":
        first = last = today
    else:
        begin, separator, end = period.partition("..")
        rule = "day, month or FROM..TO with dates like 2026-01-31"
        try:
            first, last = datetime.date.fromisoformat(begin), datetime.date.fromisoformat(end)
        except ValueError as exc:
            raise refused("period", rule, period, None if separator else "month") from exc
        if not 0 <= (last - first).days < KEEP_DAYS:
            rule = f"FROM..TO of 1 to {KEEP_DAYS} days"
            raise refused("period", rule, period, None)
    return range(first.toordinal() - _EPOCH, last.toordinal() - _EPOCH + 1)


def date_of(day: int) -> datetime.date:
    """Return the date of a day since 1970-01-01."""
    return datetime.date.fromordinal(day + _EPOCH)


def splits_of(names: Iterable[str]) -> tuple[Split, ...]:
    """Read by what a report is to be split.

    Raises:
        InvalidField: There is no such split.
    """
    found = []
    for name in names:
        if name not in list(Split):
            raise refused("by", "one of " + ", ".join(Split), name, nearest_name(name, list(Split)))
        found.append(Split(name))
    return tuple(dict.fromkeys(found))
