"""When a request ends by itself, and when its caller is due a sign of life.

Reads no clock: time comes in as `now`, monotonic seconds.
"""

from dataclasses import replace

from services.domain.errors import ErrorDetail, LimitExpired
from services.domain.generation import Limits

HEARTBEAT_S = 5.0
"""Seconds between two signs of life before the first token."""
LEAST_S = 0.001
DEADLINE_MARGIN_S = 0.03
"""So much before the caller's deadline a request ends here, for its status to reach the caller in time,"""
DEADLINE_MARGIN_SHARE = 0.1
"""but no larger a part of it."""


class Deadlines:
    """The time limits of one request, from its arrival.

    Limits of the queue hold until it has a place, those of the first token until that came.
    """

    __slots__ = ("_arrived", "_beat_at", "_limits", "has_first_token", "has_place")

    def __init__(self, limits: Limits, arrived: float) -> None:
        self._limits = limits
        self._arrived = arrived
        self._beat_at = arrived + HEARTBEAT_S
        self.has_place = False
        self.has_first_token = False

    def expired(self, now: float) -> LimitExpired | None:
        """Return the limit that has run out, if one has."""
        for name, limit_s in self._running():
            if now - self._arrived >= limit_s:
                return LimitExpired(
                    f"the {name} limit of {limit_s:.3f} s ran out",
                    ErrorDetail(metadata={"limit": name, "limit_ms": f"{limit_s * 1000:.0f}"}),
                )
        return None

    def beat(self, now: float) -> bool:
        """Say whether a sign of life is due now; counts it as given."""
        if self.has_first_token or now < self._beat_at:
            return False
        self._beat_at = now + HEARTBEAT_S
        return True

    def next_due(self) -> float | None:
        """Return when to look again; None when nothing can become due."""
        dues = [self._arrived + limit_s for _, limit_s in self._running()]
        if not self.has_first_token:
            dues.append(self._beat_at)
        return min(dues, default=None)

    def left(self, now: float) -> Limits:
        """Return what is left for a worker, which has no queue limit to keep."""

        def rest(limit_s: float | None) -> float | None:
            return None if limit_s is None else max(LEAST_S, limit_s - (now - self._arrived))

        return Limits(first_token_s=rest(self._limits.first_token_s), total_s=rest(self._limits.total_s))

    def _running(self) -> list[tuple[str, float]]:
        running = [("total", self._limits.total_s)]
        if not self.has_first_token:
            running.append(("first token", self._limits.first_token_s))
            if not self.has_place:
                running.append(("queue", self._limits.queue_s))
        return [(name, limit_s) for name, limit_s in running if limit_s is not None]


def with_deadline(limits: Limits, deadline_s: float | None) -> Limits:
    """Return the limits of a request whose caller gives up after `deadline_s`, if it does."""
    if deadline_s is None:
        return limits
    total_s = max(LEAST_S, deadline_s - min(DEADLINE_MARGIN_S, deadline_s * DEADLINE_MARGIN_SHARE))
    return replace(limits, total_s=total_s if limits.total_s is None else min(limits.total_s, total_s))
