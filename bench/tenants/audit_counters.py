"""Counters of one scope, computed again from what happened: choices, buckets, days and months.

Written from what the limits mean (`services/domain/limits.py`, `gateway/stores/quota.py`), not from the
store's script, so that a slip there is not made here too. Times in milliseconds of the store's clock. Judges
nothing but whether one more request would go beyond a limit.
"""

import datetime
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.tenants.audit_events import BUCKETS, PERIODS, Bounds

ROUNDING = 1e-6
"""Tokens that two orders of the same additions may differ by."""

Period = tuple[int, ...]


def amounts_of(prompt_tokens: int, output_tokens: int) -> tuple[int, ...]:
    """Return what a request takes of each of `BUCKETS`; one that used nothing was none."""
    tokens = prompt_tokens + output_tokens
    return (1 if tokens else 0, tokens, prompt_tokens, output_tokens)


@dataclass(slots=True)
class Bucket:
    """Fills at a constant rate up to its capacity; below 0 is a debt."""

    level: float
    at_ms: int
    capacity: float
    per_minute: float

    def fill(self, at_ms: int) -> None:
        gained = max(0, at_ms - self.at_ms) * self.per_minute / 60_000
        self.level = min(self.capacity, self.level + gained)
        self.at_ms = at_ms


@dataclass(slots=True)
class Counters:
    """What is taken of one scope."""

    held: int = 0
    """Choices waiting or running."""
    reserved: int = 0
    """Tokens of open reservations, at worst case."""
    buckets: dict[int, Bucket] = field(default_factory=dict)
    charged: defaultdict[Period, int] = field(default_factory=lambda: defaultdict(int))
    """Tokens by period: used by what ended, worst case of what is open."""
    latest: list[Period] = field(default_factory=lambda: [(), ()])

    def periods(self, at_ms: int, zone: float) -> list[Period]:
        """Return the day and the month that begin counting now; none begins twice."""
        local = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC) + datetime.timedelta(minutes=zone)
        now = [(local.year, local.month, local.day), (local.year, local.month)]
        self.latest = [max(seen, one) for seen, one in zip(self.latest, now, strict=True)]
        return list(self.latest)

    def beyond(self, at_ms: int, bounds: Bounds, num_choices: int, amounts: Sequence[int]) -> list[str]:
        """Return the kinds of limit that one more request would go beyond."""
        found = [] if self.held + num_choices <= bounds.concurrency else ["concurrency"]
        for index, name in enumerate(BUCKETS):
            if amounts[index] > self._level(index, at_ms, bounds) + ROUNDING:
                found.append(name)
        for name, period, budget in zip(
            PERIODS, self.periods(at_ms, bounds.zone), bounds.budgets, strict=True
        ):
            if self.charged[period] + amounts[1] > budget:
                found.append(name)
        return found

    def charge(self, at_ms: int, periods: Sequence[Period], change: Sequence[int]) -> None:
        """Take `change` of each bucket (below 0: give it back), and its tokens of the periods."""
        for index, bucket in self.buckets.items():
            if change[index]:
                bucket.fill(at_ms)
                bucket.level = min(bucket.capacity, bucket.level - change[index])
        for period in periods:
            self.charged[period] += change[1]

    def _level(self, index: int, at_ms: int, bounds: Bounds) -> float:
        """Return what a bucket holds under limits that may be new; one that nobody knew is full."""
        capacity, per_minute = bounds.capacity[index], bounds.per_minute[index]
        if math.isinf(capacity):
            return capacity
        bucket = self.buckets.setdefault(index, Bucket(capacity, at_ms, capacity, per_minute))
        bucket.fill(at_ms)
        bucket.capacity, bucket.per_minute = capacity, per_minute
        bucket.level = min(capacity, bucket.level)
        return bucket.level
