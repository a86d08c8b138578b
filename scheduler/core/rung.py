"""One rung of the ladder of degradation: a step, and the time and pressure that it takes to move.

Knows neither whose it is nor what presses; who has to be ahead or behind it is told.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.domain.degradation import Step

if TYPE_CHECKING:
    from scheduler.core.degrade import LadderRules

MAX_STAY_S = 600.0
"""A rung is tried one step lower at least this often while the pressure is low."""


@dataclass(slots=True)
class Rung:
    """How far somebody has climbed, and what it takes to move."""

    step: Step = Step.NONE
    high_since: float | None = None
    low_since: float | None = None
    stay_s: float = 0.0
    fell_at: float | None = None

    def climb(self, pressure: float, below: Step, rules: "LadderRules", now: float) -> None:
        """Take a step up if it is time.

        Args:
            below: Where those stand that have to be ahead.
        """
        if pressure < 1.0:
            self.high_since = None
            return
        if self.high_since is None:
            self.high_since = now
        may_lead = below is Step.REFUSE or self.step + 1 < below
        if now - self.high_since < rules.rise_after_s or self.step is Step.REFUSE or not may_lead:
            return
        stay_s = max(self.stay_s, rules.fall_after_s)
        if self.fell_at is not None:
            stay_s = min(MAX_STAY_S, 2 * stay_s) if self._is_soon(rules, now) else rules.fall_after_s
            self.fell_at = None
        self.stay_s = stay_s
        self.step = Step(self.step + 1)
        self.high_since = now

    def come_down(self, pressure: float, above: Step, rules: "LadderRules", now: float) -> None:
        """Take a step down if it is time.

        Args:
            above: Where those stand that have to be behind.
        """
        if pressure > rules.fall_at:
            self.low_since = None
            return
        if self.low_since is None:
            self.low_since = now
        must_lead = above > Step.NONE and self.step <= above + 1
        if now - self.low_since < self.stay_s or self.step is Step.NONE or must_lead:
            return
        self.step = Step(self.step - 1)
        self.fell_at = self.low_since = now

    def stays_s(self, now: float) -> float:
        """Return how long it stays on its step yet, if from now on nothing presses."""
        return self.stay_s - (0.0 if self.low_since is None else now - self.low_since)

    def says_nothing(self, rules: "LadderRules", now: float) -> bool:
        """Say whether a new rung would do as well."""
        return self.step is Step.NONE and self.high_since is None and not self._is_soon(rules, now)

    def _is_soon(self, rules: "LadderRules", now: float) -> bool:
        """Say whether climbing now would be soon after coming down."""
        stay_s = max(self.stay_s, rules.fall_after_s)
        return self.fell_at is not None and now - self.fell_at < stay_s + rules.rise_after_s
