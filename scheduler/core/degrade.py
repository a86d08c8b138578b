"""How far each band of each model has climbed the ladder of degradation.

Driven by pressure: how long the oldest request of a band waits against its target, and how full the KV pools
are while somebody waits. Between the rising and the falling threshold nothing moves, each move takes its
time, and a band that climbs again soon after it came down stays longer: so neither noise at a threshold nor
the ladder's own relief makes it flap. A step concerns a band as a whole; what it does to each of the band's
tenants is others' to say: the content of a request is its tenant's agreement (`gateway.core.reductions`), and
who is throttled or refused is a matter of shares (`scheduler.core.refusals`). Knows no requests, no tenant
and no clock; what a step means is not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.domain.degradation import Step
from services.domain.generation import Band

LOOK_EVERY_S = 1.0
"""Least time between two looks."""

MAX_STAY_S = 600.0
"""A band is tried one step lower at least this often while the pressure is low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRules:
    """Thresholds. Pressure 1.0 is a wait of just the target, or pools as full as they may be."""

    targets_s: Mapping[Band, float] = field(default_factory=dict)
    """Longest a band's oldest request should wait; a band without one never climbs."""
    most_held: float = 0.98
    """Part of the KV pages that may be held while requests wait."""
    fall_at: float = 0.5
    """Pressure up to which a band comes down; it climbs from 1.0 on."""
    rise_after_s: float = 5.0
    """So long the pressure must stay high before each step up."""
    fall_after_s: float = 30.0
    """The same for each step down; doubled each time a band climbs again within that time of coming down."""


@dataclass(frozen=True, slots=True)
class Load:
    """What presses on one model."""

    waits_s: Mapping[Band, float] = field(default_factory=dict)
    """How long the oldest request of each band has waited; bands with nobody are absent."""
    held: float = 0.0
    """Part of the model's KV pages that is held, 0 to 1."""


@dataclass(slots=True)
class _Rung:
    """One band of one model."""

    step: Step = Step.NONE
    high_since: float | None = None
    low_since: float | None = None
    stay_s: float = 0.0
    fell_at: float | None = None


class Ladder:
    """The steps of all bands of all models.

    A lower band is always at least one step ahead of a better one, or at the top: low bands climb first and
    come down last.
    """

    def __init__(self, rules: LadderRules) -> None:
        self._rules = rules
        self._bands = sorted(rules.targets_s, reverse=True)
        """Lowest first."""
        self._rungs: dict[str, dict[Band, _Rung]] = {}
        self._next_look = float("-inf")

    def step(self, model: str, band: Band) -> Step:
        """Return how far a band has climbed."""
        rung = self._rungs.get(model, {}).get(band)
        return Step.NONE if rung is None else rung.step

    def steps(self, model: str) -> dict[Band, Step]:
        """Return the bands of a model that have climbed."""
        return {band: rung.step for band, rung in self._rungs.get(model, {}).items() if rung.step}

    def is_due(self, now: float) -> bool:
        return bool(self._bands) and now >= self._next_look

    def next_look(self, *, is_waiting: bool) -> float | None:
        """Return when to look again although nothing came in; None: there is no need to.

        Args:
            is_waiting: Somebody waits, so the pressure rises by itself.
        """
        has_climbed = any(rung.step for rungs in self._rungs.values() for rung in rungs.values())
        return self._next_look if self._bands and (is_waiting or has_climbed) else None

    def look(self, loads: Mapping[str, Load], now: float) -> bool:
        """Move all bands by what is true now; return whether any step changed.

        Args:
            loads: Of the models for which somebody waits; the others count as idle.
        """
        self._next_look = now + LOOK_EVERY_S
        for model in loads:
            self._rungs.setdefault(model, {band: _Rung() for band in self._bands})
        changed = [self._move(rungs, loads.get(model, Load()), now) for model, rungs in self._rungs.items()]
        return any(changed)

    def _move(self, rungs: Mapping[Band, _Rung], load: Load, now: float) -> bool:
        before = [rung.step for rung in rungs.values()]
        pressures = self._pressures(load)
        below = Step.REFUSE
        for band in self._bands:
            self._climb(rungs[band], pressures[band], below, now)
            below = rungs[band].step
        above = Step.NONE
        for band in reversed(self._bands):
            self._come_down(rungs[band], pressures[band], above, now)
            above = rungs[band].step
        return before != [rung.step for rung in rungs.values()]

    def _pressures(self, load: Load) -> dict[Band, float]:
        """Return each band's pressure: its own, or that of a better band, which a lower one must relieve."""
        pressures: dict[Band, float] = {}
        # Full pools alone are good use of memory; they press only while somebody waits.
        worst = 1.0 if load.waits_s and load.held >= self._rules.most_held else 0.0
        for band in reversed(self._bands):
            worst = max(worst, load.waits_s.get(band, 0.0) / self._rules.targets_s[band])
            pressures[band] = worst
        return pressures

    def _climb(self, rung: _Rung, pressure: float, below: Step, now: float) -> None:
        if pressure < 1.0:
            rung.high_since = None
            return
        if rung.high_since is None:
            rung.high_since = now
        may_lead = below is Step.REFUSE or rung.step + 1 < below
        if now - rung.high_since < self._rules.rise_after_s or rung.step is Step.REFUSE or not may_lead:
            return
        stay_s = max(rung.stay_s, self._rules.fall_after_s)
        if rung.fell_at is not None:
            soon = now - rung.fell_at < stay_s + self._rules.rise_after_s
            stay_s = min(MAX_STAY_S, 2 * stay_s) if soon else self._rules.fall_after_s
            rung.fell_at = None
        rung.stay_s = stay_s
        rung.step = Step(rung.step + 1)
        rung.high_since = now

    def _come_down(self, rung: _Rung, pressure: float, above: Step, now: float) -> None:
        if pressure > self._rules.fall_at:
            rung.low_since = None
            return
        if rung.low_since is None:
            rung.low_since = now
        must_lead = above > Step.NONE and rung.step <= above + 1
        if now - rung.low_since < rung.stay_s or rung.step is Step.NONE or must_lead:
            return
        rung.step = Step(rung.step - 1)
        rung.fell_at = rung.low_since = now
