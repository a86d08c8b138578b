"""The ladder of degradation: who climbs when, who comes down, and that nothing flaps."""

import itertools
import random

import pytest

from scheduler.core.degrade import Ladder, LadderRules, Load
from services.domain.bands import Bands
from services.domain.degradation import Step
from services.domain.generation import Band

RULES = LadderRules(
    targets_s={Band.INTERACTIVE: 1.0, Band.STANDARD: 5.0, Band.BATCH: 60.0},
    rise_after_s=5.0,
    fall_after_s=30.0,
)
IDLE = Load()


class Fleet:
    """One model under a ladder, looked at each second."""

    def __init__(self, rules: LadderRules = RULES) -> None:
        self.ladder = Ladder(rules)
        self.now = 0.0
        self.num_moves = 0

    def run(self, seconds: int, load: Load) -> list[Step]:
        for _ in range(seconds):
            self.now += 1.0
            assert self.ladder.is_due(self.now)
            self.num_moves += self.ladder.look({"m": load}, self.now)
        return self.steps

    @property
    def steps(self) -> list[Step]:
        return [self.ladder.step("m", band) for band in (Band.BATCH, Band.STANDARD, Band.INTERACTIVE)]


def late(band: Band, times: float) -> Load:
    """The oldest of a band has waited so many times its target."""
    return Load({band: times * RULES.targets_s[band]})


def test_nobody_climbs_below_the_target_however_long() -> None:
    assert Fleet().run(3600, late(Band.INTERACTIVE, 0.99)) == [0, 0, 0]


def test_a_late_band_moves_the_bands_below_it_first() -> None:
    fleet = Fleet()
    assert fleet.run(6, late(Band.INTERACTIVE, 1.0)) == [1, 0, 0]
    assert fleet.run(5, late(Band.INTERACTIVE, 1.0)) == [2, 1, 0]
    assert fleet.run(5, late(Band.INTERACTIVE, 1.0)) == [3, 2, 1]
    assert fleet.run(60, late(Band.INTERACTIVE, 1.0)) == [6, 6, 6]


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
    assert fleet.run(3600, late(Band.INTERACTIVE, 0.75)) == held


def test_ten_minutes_of_noise_at_the_threshold_do_not_flap() -> None:
    """Every move is one up. The control has no gap between the thresholds and takes no time: it flaps."""

    def ten_minutes(rules: LadderRules) -> Fleet:
        noise, fleet = random.Random(7), Fleet(rules)
        for _ in range(600):
            fleet.run(1, late(Band.BATCH, noise.uniform(0.9, 1.1)))
        return fleet

    calm = ten_minutes(RULES)
    assert calm.num_moves == calm.steps[0]
    hasty = LadderRules(targets_s=RULES.targets_s, fall_at=0.999, rise_after_s=0.0, fall_after_s=0.0)
    assert ten_minutes(hasty).num_moves > 100


def test_a_ladder_that_relieves_the_pressure_it_climbed_for_moves_ever_more_rarely() -> None:
    """Load is high on the ground and low one step up: each fall brings the pressure back."""
    fleet = Fleet()
    moves = []
    for _ in range(4 * 3600):
        load = late(Band.BATCH, 2.0) if fleet.steps[0] is Step.NONE else IDLE
        before = fleet.num_moves
        fleet.run(1, load)
        if fleet.num_moves > before:
            moves.append(fleet.now)
    stays = [down - up for up, down in itertools.pairwise(moves)][::2]
    assert stays[:4] == [31.0, 61.0, 121.0, 241.0], "the time to stay, and the look after it"
    assert max(stays) == 601.0


@pytest.mark.parametrize(("held", "climbs"), [(0.97, False), (0.98, True)])
def test_full_pools_press_only_while_somebody_waits(held: float, climbs: bool) -> None:
    assert Fleet().run(60, Load({}, held)) == [0, 0, 0]
    steps = Fleet().run(60, Load({Band.STANDARD: 0.001}, held))
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


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_low_bands_lead(seed: int) -> None:
    """A better band never stands as high as a lower one, except where both are at the top."""
    choose, fleet = random.Random(seed), Fleet()
    for _ in range(300):
        waits = {band: choose.choice([0.0, 0.2, 1.5]) * RULES.targets_s[band] for band in Bands()}
        fleet.run(choose.randint(1, 40), Load(waits, choose.choice([0.1, 1.0])))
        for lower, better in itertools.pairwise(fleet.steps):
            assert better == Step.NONE or lower > better or lower is Step.REFUSE
