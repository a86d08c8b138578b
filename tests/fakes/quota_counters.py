"""Counters and calendar of `MemoryQuota`, by other means than the script's: a check of its arithmetic too."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.domain.limits import Limits, Rate

Amounts = Mapping[str, int]
"""Kind of bucket -> what a request takes of it."""


@dataclass
class Bucket:
    rate: Rate
    level: float
    at: float

    def refill(self, now: float) -> float:
        self.level = min(self.rate.capacity, self.level + max(0.0, now - self.at) * self.rate.per_minute / 60)
        self.at = now
        return self.level


@dataclass
class Period:
    number: int
    charged: int = 0
    spent: int = 0


@dataclass
class Counter:
    held: int = 0
    reserved: int = 0
    buckets: dict[str, Bucket] = field(default_factory=dict)
    periods: dict[str, Period] = field(default_factory=dict)

    def bucket(self, kind: str, rate: Rate, now: float) -> Bucket:
        bucket = self.buckets.setdefault(kind, Bucket(rate, rate.capacity, now))
        bucket.refill(now)
        bucket.rate, bucket.level = rate, min(bucket.level, rate.capacity)
        return bucket

    def period(self, which: str, number: int, latest: int) -> Period:
        """Return the one of now, or one up to `latest` if it was of that already."""
        entry = self.periods.get(which)
        if entry is None or not number <= entry.number <= latest:
            entry = self.periods[which] = Period(number)
        return entry


def amounts_of(prompt: int, output: int) -> Amounts:
    tokens = prompt + output
    return {"requests": 1 if tokens else 0, "tokens": tokens, "prompt": prompt, "output": output}


NOTHING = amounts_of(0, 0)


def rates_of(limits: Limits) -> list[tuple[str, Rate]]:
    rates = {
        "requests": limits.requests_per_minute,
        "tokens": limits.tokens_per_minute,
        "prompt": limits.prompt_tokens_per_minute,
        "output": limits.output_tokens_per_minute,
    }
    return [(kind, rate) for kind, rate in rates.items() if rate is not None]


def local_time(now: float, offset_minutes: int) -> datetime.datetime:
    zone = datetime.timezone(datetime.timedelta(minutes=offset_minutes))
    return datetime.datetime.fromtimestamp(now, zone)


MAX_APART = datetime.timedelta(days=2)
"""Longer than any zone is behind another."""


def month_of(local: datetime.datetime) -> int:
    return local.year * 12 + local.month - 1


def end_of(which: str, number: int, offset_minutes: int) -> float:
    """Return the second at which a period of `_periods` ends."""
    zone = datetime.timezone(datetime.timedelta(minutes=offset_minutes))
    if which == "day":
        midnight = datetime.datetime.combine(
            datetime.date.fromordinal(number + 1), datetime.time(), tzinfo=zone
        )
    else:
        midnight = datetime.datetime((number + 1) // 12, (number + 1) % 12 + 1, 1, tzinfo=zone)
    return midnight.timestamp()
