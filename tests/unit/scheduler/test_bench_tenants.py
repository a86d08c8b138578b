"""What `python -m bench.tenants` shows, in small: all its rows, and what they do not have.

The rows themselves have FIFO as their control.
"""

from dataclasses import replace

import pytest

from bench.tenants.fairness import QUICK, SCENARIOS
from bench.tenants.fleet import UNBOUNDED, Ask
from bench.tenants.scenarios import (
    FLOOD,
    LONG_FLOOD,
    MIXED,
    OF_BOTH_CLASSES,
    SHORT_FLOOD,
    WEIGHTED,
    floors,
    noisy_neighbour,
    weighted,
)
from scheduler.core.fair_queue import FairPolicy, as_vtc
from scheduler.core.share_queue import FairRules
from services.domain.bands import Bands
from services.domain.generation import Band


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_row_of_fairness_holds_and_not_with_fifo(scenario: str) -> None:
    found = list(SCENARIOS[scenario](QUICK))
    assert found
    assert [row.text() for row in found if not row.holds] == []


@pytest.mark.slow
@pytest.mark.parametrize("flood", [FLOOD, SHORT_FLOOD, LONG_FLOOD], ids=["long", "short", "longest"])
def test_of_a_thousand_quiet_requests_one_in_a_hundred_waits_two_steps_because_seats_are_kept(
    flood: Ask,
) -> None:
    alone = noisy_neighbour(FairPolicy(), flood=None, num_quiet=1020)
    fair = noisy_neighbour(FairPolicy(), flood=flood, num_quiet=1020)
    off = replace(UNBOUNDED, max_over_share=1.0, yield_after_s=1e9)
    unkept = noisy_neighbour(FairPolicy(), off, flood=flood, num_quiet=1020)
    assert fair.num_served == alone.num_served >= 1000
    assert fair.p50_s <= alone.p50_s + fair.step_s
    assert fair.p99_s <= alone.p99_s + 2 * fair.step_s < unkept.p99_s
    assert fair.tokens_per_s >= 0.99 * unkept.tokens_per_s


def test_service_follows_the_weights_whatever_the_class_and_with_one_seat() -> None:
    rules = FairRules(quantum=1024)
    fair = weighted(FairPolicy(rules), quantum=rules.quantum, asks=OF_BOTH_CLASSES, seats=1, times_bound=3.0)
    assert fair.largest_part <= 1
    assert fair.worst_error <= 1 / 3


@pytest.mark.slow
@pytest.mark.parametrize("asks", [WEIGHTED, OF_BOTH_CLASSES, MIXED], ids=["lengths", "classes", "mixed"])
def test_service_is_that_of_the_weights_within_a_twentieth_at_twenty_times_the_bound(
    asks: tuple[Ask, ...],
) -> None:
    rules = FairRules()
    fair = weighted(FairPolicy(rules), quantum=rules.quantum, asks=asks, times_bound=20.0)
    assert fair.times_bound >= 20
    assert fair.largest_part <= 1, "between any two instants"
    assert fair.worst_error <= 0.05


@pytest.mark.parametrize("rules", [FairRules(), as_vtc(FairRules())], ids=["fair", "vtc"])
def test_a_lower_band_gets_its_floor_and_no_more(rules: FairRules) -> None:
    shares = floors(FairPolicy(rules), until_s=60.0)
    for band, floor in rules.floors.items():
        assert shares[band] == pytest.approx(floor, abs=0.02)


def test_bands_of_ones_own_have_their_own_floors() -> None:
    rules = FairRules(floors={Band(2): 0.2, Band(3): 0.05, Band(4): 0.1}, num_bands=4)
    shares = floors(FairPolicy(rules), until_s=60.0, bands=Bands(("a", "b", "c", "d")))
    assert [shares[band] for band in map(Band, range(1, 5))] == pytest.approx(
        [0.65, 0.2, 0.05, 0.1], abs=0.02
    )
