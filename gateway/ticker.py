"""One timer for all streams: what arrives between two ticks is sent together.

Knows whom to wake; does not know why. Idle, it costs nothing.
"""

import asyncio
from collections.abc import Callable

PERIOD_S = 0.025
"""Seconds between two sends of one stream after its first token."""


class Ticker:
    """Wakes everybody who asked since the last tick, at the next one."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._due: list[Callable[[], None]] = []

    def wake_soon(self, wake: Callable[[], None]) -> None:
        """Call `wake` at the next tick; whoever asks twice is woken twice."""
        if not self._due:
            asyncio.get_running_loop().call_later(self._period_s, self._tick)
        self._due.append(wake)

    def _tick(self) -> None:
        due, self._due = self._due, []
        for wake in due:
            wake()
