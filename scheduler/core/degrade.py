"""How far each band of each model, and each tenant in it, has climbed the ladder of degradation.

A tenant has a rung of its own, driven by how long its oldest request waits against the band's target. The
band has one for what concerns all of its tenants: full KV pools while somebody waits, better bands that are
late, and lateness that is nobody's flood, when most of the tenants that wait are late although each asks
within its share. A tenant stands on the higher of the two.

Two orders hold. Low bands climb first: a band's own rung is a step ahead of all rungs of the bands above it,
and comes down after them. And who asks for more than its share climbs first: while such a tenant is late, or
what concerns all presses, who asks for less stays a step behind it, the band too, so a neighbour's flood
moves nobody else and a low band makes room by its largest first. Between the rising
and the falling threshold nothing moves, each move takes its time, and what climbs again soon after it came
down stays longer: so neither noise at a threshold nor the ladder's own relief makes it flap.

Held are those who stand on a step, are late, or came down so lately that climbing again counts as soon. A
look takes as long as there are tenants that wait; nothing else here depends on how many there are. What a
step does to a request is others' to say: its content is its tenant's agreement (`gateway.core.reductions`),
who is refused `scheduler.core.refusals`'s. Knows no requests and no clock.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.core.rung import Rung
from services.domain.degradation import Step
from services.domain.generation import Band
from services.domain.ids import TenantId

LOOK_EVERY_S = 1.0
"""Least time between two looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRules:
    """Thresholds. Pressure 1.0 is a wait of just the target, or pools as full as they may be."""

    targets_s: Mapping[Band, float] = field(default_factory=dict)
    """Longest a tenant's oldest request in a band should wait; a band without one never climbs."""
    most_held: float = 0.98
    """Part of the KV pages that may be held while requests wait."""
    fall_at: float = 0.5
    """Pressure up to which a rung comes down; it climbs from 1.0 on."""
    rise_after_s: float = 5.0
    """So long the pressure must stay high before each step up."""
    fall_after_s: float = 30.0
    """The same for each step down; doubled each time a rung climbs again within that time of coming down."""


@dataclass(frozen=True, slots=True)
class Load:
    """What presses on one model."""

    waits_s: Mapping[Band, Mapping[TenantId, float]] = field(default_factory=dict)
    """How long the oldest request of each tenant has waited; who has none is absent."""
    held: float = 0.0
    """Part of the model's KV pages that is held, 0 to 1."""
    is_within_share: Callable[[TenantId, Band], bool] = lambda tenant, band: False
    """Says whether a tenant that waits asks for no more than its share of the band."""


class TenantStep(NamedTuple):
    """How far one tenant has climbed by itself."""

    model: str
    band: Band
    tenant: TenantId
    step: Step


class Moved(NamedTuple):
    """What one look has changed."""

    bands: bool
    """Whether any band's own step is another one."""
    tenants: tuple[TenantStep, ...]


@dataclass(slots=True)
class _BandRungs:
    """One band of one model."""

    own: Rung = field(default_factory=Rung)
    tenants: dict[TenantId, Rung] = field(default_factory=dict)

    @property
    def highest(self) -> Step:
        return max([self.own.step, *[rung.step for rung in self.tenants.values()]])


class _Pressure:
    """What presses on one band at one look. Waits are in parts of the target."""

    def __init__(self, band: Band, load: Load, target_s: float, fall_at: float) -> None:
        self.waits = {tenant: wait_s / target_s for tenant, wait_s in load.waits_s.get(band, {}).items()}
        self.over = {tenant for tenant in self.waits if not load.is_within_share(tenant, band)}
        """Those that ask for more than their share."""
        self.flooding = {tenant for tenant in self.over if self.waits[tenant] > fall_at}
        """Those of them that are late or about to be."""
        self.worst = max(self.waits.values(), default=0.0)
        self.common = 0.0
        """What is so of most of the others; of one alone nothing is. Worked number: of waits of 3, 2 and 0.1
        it is 2, of 3 and 0.1 it is 0.1."""
        others = sorted(wait for tenant, wait in self.waits.items() if tenant not in self.flooding)
        if len(others) > 1:
            self.common = others[(len(others) - 1) // 2]


class Ladder:
    """The rungs of all bands of all models and of their tenants."""

    def __init__(self, rules: LadderRules) -> None:
        self._rules = rules
        self._bands = sorted(rules.targets_s, reverse=True)
        """Lowest first."""
        self._models: dict[str, dict[Band, _BandRungs]] = {}
        self._has_climbed = False
        self._next_look = float("-inf")

    @property
    def num_held(self) -> int:
        """Tenants' rungs that are held."""
        return sum(len(band.tenants) for bands in self._models.values() for band in bands.values())

    def step(self, model: str, band: Band, tenant: TenantId) -> Step:
        """Return how far a tenant has climbed, by itself or with its band."""
        if not self._has_climbed:
            return Step.NONE
        return max(self.band_step(model, band), self.tenant_step(model, band, tenant))

    def band_step(self, model: str, band: Band) -> Step:
        """Return how far a band has climbed."""
        rungs = self._models.get(model, {}).get(band)
        return Step.NONE if rungs is None else rungs.own.step

    def tenant_step(self, model: str, band: Band, tenant: TenantId) -> Step:
        """Return how far a tenant has climbed by itself."""
        rungs = self._models.get(model, {}).get(band)
        rung = None if rungs is None else rungs.tenants.get(tenant)
        return Step.NONE if rung is None else rung.step

    def retry_after_s(self, model: str, band: Band, tenant: TenantId | None, now: float) -> float:
        """Return how long a band, or a tenant in it by itself, stays where it stands at the least."""
        rungs = self._models[model][band]
        rung = rungs.own if tenant is None else rungs.tenants[tenant]
        return max(LOOK_EVERY_S, rung.stays_s(now))

    def steps(self, model: str) -> dict[Band, Step]:
        """Return the bands of a model that have climbed."""
        return {band: rungs.own.step for band, rungs in self._models.get(model, {}).items() if rungs.own.step}

    def tenants(self) -> Iterator[TenantStep]:
        """Yield the tenants that have climbed by themselves."""
        for model, bands in self._models.items():
            for band, rungs in bands.items():
                for tenant, rung in rungs.tenants.items():
                    if rung.step:
                        yield TenantStep(model, band, tenant, rung.step)

    def is_due(self, now: float) -> bool:
        return bool(self._bands) and now >= self._next_look

    def next_look(self, *, is_waiting: bool) -> float | None:
        """Return when to look again although nothing came in; None: there is no need to.

        Args:
            is_waiting: Somebody waits, so the pressure rises by itself.
        """
        return self._next_look if self._bands and (is_waiting or self._has_climbed) else None

    def look(self, loads: Mapping[str, Load], now: float) -> Moved:
        """Move all rungs by what is true now; return what changed.

        Args:
            loads: Of the models for which somebody waits; the others count as idle.
        """
        self._next_look = now + LOOK_EVERY_S
        for model in loads:
            self._models.setdefault(model, {band: _BandRungs() for band in self._bands})
        bands_before = {model: self.steps(model) for model in self._models}
        before = {one[:3]: one for one in self.tenants()}
        for model, bands in self._models.items():
            self._move(bands, loads.get(model, Load()), now)
        after = {one[:3]: one for one in self.tenants()}
        gone = [one._replace(step=Step.NONE) for where, one in before.items() if where not in after]
        moved = [one for where, one in after.items() if before.get(where) != one]
        self._has_climbed = bool(after) or any(map(self.steps, self._models))
        is_other = any(self.steps(model) != steps for model, steps in bands_before.items())
        return Moved(is_other, (*gone, *moved))

    def _move(self, bands: Mapping[Band, _BandRungs], load: Load, now: float) -> None:
        targets_s, fall_at = self._rules.targets_s, self._rules.fall_at
        pressures = {band: _Pressure(band, load, targets_s[band], fall_at) for band in self._bands}
        # Full pools alone are good use of memory; they press only while somebody waits.
        carried = 1.0 if load.waits_s and load.held >= self._rules.most_held else 0.0
        from_others: dict[Band, float] = {}
        for band in reversed(self._bands):
            from_others[band] = carried
            carried = max(carried, pressures[band].worst)
        below = Step.REFUSE
        for band in self._bands:
            self._climb(bands[band], pressures[band], from_others[band], below, now)
            below = bands[band].own.step
        above = Step.NONE
        for band in reversed(self._bands):
            self._come_down(bands[band], pressures[band], from_others[band], above, now)
            above = bands[band].highest

    def _climb(
        self, rungs: _BandRungs, pressure: _Pressure, from_others: float, below: Step, now: float
    ) -> None:
        """Let a band and its tenants climb, those that ask for more than their share before the others.

        What presses from others presses on who asks for more, late or not, and on the band behind these.
        """
        rules, waits = self._rules, pressure.waits
        is_pressed = from_others >= 1.0
        leading = pressure.over if is_pressed else pressure.flooding
        pressed = {
            tenant for tenant, wait in waits.items() if wait >= 1.0 or (is_pressed and tenant in leading)
        }
        for tenant in pressed:
            rungs.tenants.setdefault(tenant, Rung())
        for tenant in leading & rungs.tenants.keys():
            rungs.tenants[tenant].climb(max(waits[tenant], from_others), below, rules, now)
        behind = min(below, min((rungs.tenants[one].step for one in leading & pressed), default=Step.REFUSE))
        for tenant in rungs.tenants.keys() - leading:
            rungs.tenants[tenant].climb(waits.get(tenant, 0.0), behind, rules, now)
        rungs.own.climb(max(from_others, pressure.common), behind, rules, now)

    def _come_down(
        self, rungs: _BandRungs, pressure: _Pressure, from_others: float, above: Step, now: float
    ) -> None:
        """Let a band and its tenants come down; forget whom there is nothing to know of."""
        for tenant, rung in list(rungs.tenants.items()):
            felt = max(pressure.waits.get(tenant, 0.0), from_others if tenant in pressure.over else 0.0)
            rung.come_down(felt, Step.NONE, self._rules, now)
            if rung.says_nothing(self._rules, now):
                del rungs.tenants[tenant]
        rungs.own.come_down(max(from_others, pressure.common), above, self._rules, now)
