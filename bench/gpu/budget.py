"""How much time a run has left, so that what would be cut is not begun.

Knows a clock and estimates alone.
"""

from collections.abc import Callable


class Budget:
    """Seconds from the start of the run to when it must have ended."""

    def __init__(self, total_s: float, clock: Callable[[], float]) -> None:
        self._total_s, self._clock = total_s, clock
        self._began = clock()

    @property
    def spent_s(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        """Seconds until the run must have ended; not below 0."""
        return max(0.0, self._total_s - self.spent_s)

    def refusal(self, needed_s: float) -> str | None:
        """Return why something of so many seconds is not begun; None where it fits."""
        left = self.left_s
        if needed_s <= left:
            return None
        return f"takes about {needed_s:.0f} s, {left:.0f} s of {self._total_s:.0f} s are left"
