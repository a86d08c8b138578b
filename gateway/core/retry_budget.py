"""How many further attempts all requests of a gateway may make together: a share of the traffic.

When many workers fail at once, every request tried again is load on those that are left; so a request
beyond the share fails with what it met. Counts requests and attempts, reads no clock, and knows neither.

Source: Finagle's RetryBudget: a deposit with each request, a withdrawal with each attempt.
"""

from collections.abc import Callable

RESERVE = 10.0
"""Attempts that may be made before there was any traffic."""
MOST = 100.0
"""Attempts that traffic can save up."""


class RetryBudget:
    """Further attempts that may still be made.

    Worked number: with 10 per cent, after 1,000 requests without a fault 100 attempts may be made at once,
    and then one with every tenth request.

    Args:
        percent: Further attempts per hundred requests; 0 allows none, not even of the reserve.
        tell: Told of each wish for an attempt whether it was granted.
    """

    def __init__(self, percent: float, tell: Callable[[bool], None] = lambda granted: None) -> None:
        self._share = percent / 100
        self._left = RESERVE if percent > 0 else 0.0
        self._tell = tell

    def arrived(self) -> None:
        """A request came in."""
        self._left = min(MOST, self._left + self._share)

    def take(self) -> bool:
        """Take one attempt, if one is left."""
        granted = self._left >= 1.0
        if granted:
            self._left -= 1.0
        self._tell(granted)
        return granted
