"""The ladder of degradation: who climbs when, who comes down, and that nothing flaps."""

import itertools
import random
from collections.abc import Callable, Collection

import pytest

from scheduler.core.degrade import Ladder, LadderRules, Load, TenantStep
from services.domain.bands import Bands
from services.domain.degradation import Step
from services.domain.generation import Band
from services.domain.ids import TenantId

RULES = LadderRules(
    targets_s={Band.INTERACTIVE: 1.0, Band.STANDARD: 5.0, Band.BATCH: 60.0},
    rise_after_s=5.0,
    fall_after_s=30.0,
)
HASTY = LadderRules(targets_s=RULES.targets_s, fall_at=0.999, rise_after_s=0.0, fall_after_s=0.0)
"""No gap between the thresholds, and no step takes time."""
IDLE = Load()


class Fleet:
    """One model under a ladder, looked at each second."""

    def __init__(self, rules: LadderRules = RULES) -> None:
        self.ladder = Ladder(rules)
        self.now = 0.0
        self.band_moves = 0
        self.tenant_moves: list[TenantStep] = []

    def run(self, seconds: int, load: Load | Callable[[], Load]) -> list[Step]:
        for _ in range(seconds):
            self.now += 1.0
            assert self.ladder.is_due(self.now)
            now = load if isinstance(load, Load) else load()
            moved = self.ladder.look({"m": now}, self.now)
            self.band_moves += moved.bands
            self.tenant_moves += moved.tenants
        return self.steps

    @property
    def steps(self) -> list[Step]:
        return [self.of("t", band) for band in (Band.BATCH, Band.STANDARD, Band.INTERACTIVE)]

    def of(self, tenant: str, band: Band = Band.BATCH) -> Step:
        return self.ladder.step("m", band, TenantId(tenant))


def late(band: Band, times: float) -> Load:
    """The oldest of a tenant has waited so many times the band's target."""
    return waiting({"t": times}, band=band)


def waiting(
    times: dict[str, float], *, band: Band = Band.BATCH, within: Collection[str] = (), held: float = 0.0
) -> Load:
    """The oldest of each tenant has waited so many times the target; those `within` ask for their share."""
    waits = {TenantId(tenant): count * RULES.targets_s[band] for tenant, count in times.items()}
    return Load({band: waits}, held, lambda tenant, band: tenant in within)


def test_nobody_climbs_below_the_target_however_long() -> None:
    fleet = Fleet()
    assert fleet.run(900, late(Band.INTERACTIVE, 0.99)) == [0, 0, 0]
    assert fleet.ladder.num_held == 0


def test_a_late_band_moves_the_bands_below_it_first() -> None:
    fleet = Fleet()
    assert fleet.run(6, late(Band.INTERACTIVE, 1.0)) == [1, 0, 0]
    assert fleet.run(5, late(Band.INTERACTIVE, 1.0)) == [2, 1, 0]
    assert fleet.run(5, late(Band.INTERACTIVE, 1.0)) == [3, 2, 1]
    assert fleet.run(60, late(Band.INTERACTIVE, 1.0)) == [6, 6, 6]
    assert fleet.of("other", Band.STANDARD) == 6, "all of a lower band make room"
    assert fleet.of("other", Band.INTERACTIVE) == 0, "its neighbours in the band do not"


@pytest.mark.parametrize("by", ["a better band", "pages"])
def test_a_low_band_makes_room_by_those_who_ask_for_most_first(by: str) -> None:
    batch = {TenantId("large"): 6.0, TenantId("small"): 6.0}
    waits = {Band.BATCH: batch}
    if by == "a better band":
        waits[Band.INTERACTIVE] = {TenantId("t"): 1.0}
    load = Load(waits, 1.0 if by == "pages" else 0.0, lambda tenant, band: tenant == "small")
    fleet, seen = Fleet(), []
    for _ in range(80):
        fleet.run(1, load)
        seen.append((fleet.of("large"), fleet.of("small"), fleet.of("nobody yet")))
    assert seen[5] == (1, 0, 0), "nobody of the band is late itself"
    assert seen[10] == (2, 1, 1)
    assert all(large > small or large is Step.REFUSE for large, small, _ in seen[5:])
    assert seen[-1] == (6, 6, 6), "all make room in the end"
    fleet.run(12, Load({Band.BATCH: batch}, 0.0, load.is_within_share))
    assert fleet.of("large") is Step.REFUSE, "it takes its time"
    fleet.run(600, Load({Band.BATCH: batch}, 0.0, load.is_within_share))
    assert (fleet.of("large"), fleet.of("small")) == (0, 0)


def test_a_late_low_band_moves_no_better_one() -> None:
    assert Fleet().run(600, late(Band.BATCH, 50.0)) == [6, 0, 0]


def test_each_step_down_takes_its_time_and_better_bands_come_down_first() -> None:
    fleet = Fleet()
    fleet.run(16, late(Band.INTERACTIVE, 2.0))
    assert fleet.steps == [3, 2, 1]
    assert fleet.run(30, IDLE) == [3, 2, 1]
    assert fleet.run(1, IDLE) == [2, 1, 0]
    fleet.run(90, IDLE)
    assert fleet.steps == [0, 0, 0]


def test_between_the_thresholds_nothing_moves() -> None:
    fleet = Fleet()
    fleet.run(16, late(Band.INTERACTIVE, 2.0))
    held = fleet.steps
    assert fleet.run(900, late(Band.INTERACTIVE, 0.75)) == held


def test_a_flood_moves_nobody_beside_it() -> None:
    fleet = Fleet()
    fleet.run(600, waiting({"flood": 20.0, "quiet": 0.4}, within=["quiet"]))
    assert (fleet.of("flood"), fleet.of("quiet"), fleet.of("elsewhere")) == (6, 0, 0)


@pytest.mark.parametrize(("held", "step"), [(0.97, Step.NONE), (0.98, Step.REFUSE)])
def test_short_pages_move_everybody(held: float, step: Step) -> None:
    fleet = Fleet()
    fleet.run(600, waiting({"flood": 20.0, "quiet": 0.4}, within=["quiet"], held=held))
    assert (fleet.of("flood"), fleet.of("quiet")) == (6, step)


@pytest.mark.parametrize(("within", "step"), [(["quiet"], 1), ([], 2)])
def test_who_asks_within_its_share_stays_a_step_behind_a_flood(within: list[str], step: int) -> None:
    fleet = Fleet()
    both_late = waiting({"flood": 20.0, "quiet": 1.5}, within=within)
    fleet.run(11, both_late)
    assert (fleet.of("flood"), fleet.of("quiet")) == (2, step)
    fleet.run(60, both_late)
    assert (fleet.of("flood"), fleet.of("quiet")) == (6, 6), "late for long by itself, then"


@pytest.mark.parametrize(("on_time", "step"), [(2, Step.REFUSE), (3, Step.NONE)])
def test_lateness_of_most_who_ask_for_their_share_moves_the_band(on_time: int, step: Step) -> None:
    fleet = Fleet()
    times = {f"late{n}": 1.5 for n in range(3)} | {f"on time{n}": 0.1 for n in range(on_time)}
    fleet.run(600, waiting(times, within=times))
    assert fleet.ladder.band_step("m", Band.BATCH) is step
    assert fleet.of("nobody yet") is step
    assert fleet.of("late0") is Step.REFUSE


def test_the_band_too_stays_behind_a_flood() -> None:
    fleet = Fleet()
    times = {"flood": 20.0, "a": 1.5, "b": 1.5}
    fleet.run(6, waiting(times, within=["a", "b"]))
    assert (fleet.of("flood"), fleet.of("a"), fleet.of("elsewhere")) == (1, 0, 0)
    fleet.run(25, waiting(times, within=["a", "b"]))
    assert (fleet.of("flood"), fleet.of("elsewhere")) == (6, 5)


def test_one_late_tenant_alone_does_not_move_its_band() -> None:
    fleet = Fleet()
    fleet.run(600, waiting({"only": 5.0}, within=["only"]))
    assert (fleet.of("only"), fleet.of("elsewhere")) == (6, 0)


def test_ten_minutes_of_noise_at_the_threshold_do_not_flap() -> None:
    """Every move is one up. The control has no gap between the thresholds and takes no time: it flaps."""

    def ten_minutes(rules: LadderRules) -> Fleet:
        noise, fleet = random.Random(7), Fleet(rules)
        for _ in range(600):
            one, other = noise.uniform(0.9, 1.1), noise.uniform(0.4, 1.1)
            fleet.run(1, waiting({"one": one, "other": other, "calm": 0.2}))
        return fleet

    calm = ten_minutes(RULES)
    for tenant in ("one", "other"):
        moves = [move.step for move in calm.tenant_moves if move.tenant == tenant]
        assert moves == list(Step)[1 : len(moves) + 1], "each is one up"
    assert not [move for move in calm.tenant_moves if move.tenant == "calm"]
    assert calm.band_moves == 0
    hasty = ten_minutes(HASTY)
    for tenant in ("one", "other"):
        assert sum(move.tenant == tenant for move in hasty.tenant_moves) > 100


def test_ten_minutes_at_the_threshold_do_not_flap_for_a_band_either() -> None:
    def ten_minutes(rules: LadderRules) -> Fleet:
        noise, fleet = random.Random(7), Fleet(rules)

        def load() -> Load:
            return waiting({tenant: noise.uniform(0.9, 1.1) for tenant in "abc"}, within="abc")

        fleet.run(600, load)
        return fleet

    calm = ten_minutes(RULES)
    assert calm.band_moves == calm.ladder.band_step("m", Band.BATCH)
    assert ten_minutes(HASTY).band_moves > 100


@pytest.mark.parametrize("within", [[], ["t", "u"]])
def test_a_ladder_that_relieves_the_pressure_it_climbed_for_moves_ever_more_rarely(within: list[str]) -> None:
    """Load is high on the ground and low one step up: each fall brings the pressure back."""
    fleet = Fleet()
    moves = []
    for _ in range(3000):
        before = fleet.of("t")
        fleet.run(1, waiting({"t": 2.0, "u": 2.0}, within=within) if before is Step.NONE else IDLE)
        if fleet.of("t") is not before:
            moves.append(fleet.now)
    stays = [down - up for up, down in itertools.pairwise(moves)][::2]
    assert stays[:4] == [31.0, 61.0, 121.0, 241.0], "the time to stay, and the look after it"
    assert max(stays) == 601.0


def test_only_those_are_held_who_climb_or_might_soon_again() -> None:
    fleet = Fleet()
    crowd = {f"t{n}": 0.9 for n in range(1000)}
    fleet.run(10, waiting(crowd))
    assert fleet.ladder.num_held == 0
    fleet.run(6, waiting(crowd | {"t7": 1.0}))
    assert fleet.ladder.num_held == 1
    fleet.run(31, waiting({}))
    assert (fleet.of("t7"), fleet.ladder.num_held) == (0, 1), "climbing again now would be soon"
    fleet.run(40, waiting({}))
    assert fleet.ladder.num_held == 0


def test_whoever_is_refused_hears_how_long_it_stays_so() -> None:
    fleet = Fleet()
    where = "m", Band.BATCH, TenantId("t")
    fleet.run(60, late(Band.BATCH, 2.0))
    assert fleet.ladder.retry_after_s(*where, fleet.now) == 30.0, "of what lasts nobody knows more"
    fleet.run(11, IDLE)
    assert fleet.ladder.retry_after_s(*where, fleet.now) == 20.0
    fleet.run(20, IDLE)
    assert fleet.of("t") is Step.THROTTLE
    fleet.run(6, late(Band.BATCH, 2.0))
    assert fleet.of("t") is Step.REFUSE
    assert fleet.ladder.retry_after_s(*where, fleet.now) == 60.0, "back at once: it stays longer"


def test_each_move_of_a_tenant_is_told_once() -> None:
    fleet = Fleet()
    fleet.run(11, late(Band.BATCH, 1.0))
    fleet.run(62, IDLE)
    where = "m", Band.BATCH, TenantId("t")
    assert fleet.tenant_moves == [TenantStep(*where, Step(step)) for step in (1, 2, 1, 0)]
    assert fleet.band_moves == 0
    assert not list(fleet.ladder.tenants())


@pytest.mark.parametrize(("held", "climbs"), [(0.97, False), (0.98, True)])
def test_full_pools_press_only_while_somebody_waits(held: float, climbs: bool) -> None:
    assert Fleet().run(60, Load({}, held)) == [0, 0, 0]
    steps = Fleet().run(60, waiting({"t": 0.001}, band=Band.STANDARD, held=held))
    assert (steps[0] > Step.NONE) is climbs


def test_without_targets_nothing_is_looked_at() -> None:
    ladder = Ladder(LadderRules())
    assert not ladder.is_due(1e9)
    assert ladder.next_look(is_waiting=True) is None


def test_a_model_is_looked_at_until_it_is_down_again() -> None:
    fleet = Fleet()
    fleet.run(6, late(Band.BATCH, 1.0))
    while fleet.steps[0]:
        due = fleet.ladder.next_look(is_waiting=False)
        assert due is not None
        fleet.now = due
        fleet.ladder.look({}, due)
    assert fleet.ladder.next_look(is_waiting=False) is None


@pytest.mark.parametrize("seed", range(8))
def test_whatever_comes_low_bands_lead(seed: int) -> None:
    """Nobody of a better band stands as high as all of a lower one, except where both are at the top."""
    choose, fleet = random.Random(seed), Fleet()
    for _ in range(60):
        waits = {
            band: {
                TenantId(name): choose.choice([0.0, 0.2, 1.5]) * RULES.targets_s[band]
                for name in choose.sample("tuvw", choose.randint(0, 4))
            }
            for band in Bands()
        }
        load = Load(waits, choose.choice([0.1, 1.0]), lambda tenant, band: tenant in "tu")
        fleet.run(choose.randint(1, 40), load)
        of_bands = [fleet.ladder.band_step("m", band) for band in Bands()]
        for band, lower in zip(Bands(), of_bands[1:], strict=False):
            for name in "tuvw":
                better = fleet.of(name, band)
                assert better == Step.NONE or lower > better or lower is Step.REFUSE
