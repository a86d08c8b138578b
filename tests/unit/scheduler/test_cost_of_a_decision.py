"""What the core computes for one decision does not grow with the queue: bytecodes are counted, no time."""

import pytest

from bench.scheduler import GATEWAY, POLICIES, acquire, fleet
from bench.tenants.cost import NO_LADDER, NUM_TENANTS, bytecodes, per_decision
from scheduler.core.degrade import LadderRules
from scheduler.core.rules import Rules
from scheduler.core.state import SchedulerCore
from services.domain.bands import Bands
from services.domain.ids import WorkerId

LADDER = LadderRules(targets_s=dict.fromkeys(Bands(), 1.0))


def test_a_decision_takes_as_many_operations_with_twenty_times_as_many_waiting() -> None:
    few, many = (per_decision("fair", number) for number in (1_000, 20_000))
    assert 100 < many <= 1.1 * few


def test_nor_with_a_ladder_of_degradation() -> None:
    off, few, many = (
        per_decision("fair", number, ladder=ladder)
        for number, ladder in ((1_000, NO_LADDER), (1_000, LADDER), (5_000, LADDER))
    )
    assert 100 < many <= 1.1 * few
    assert few <= 1.05 * off


def of_a_look(num_waiting: int) -> int:
    """Return the bytecodes of one look at the ladder while so many wait, all of them late."""
    rules = Rules(max_waiting=10**9, max_waiting_tokens=10**12, boot_grace_s=0.0, ladder=LADDER)
    core = SchedulerCore(rules, POLICIES["fair"](), 0.0)
    fleet(core, 1)
    for number in range(num_waiting):
        core.acquire(GATEWAY, acquire(number, NUM_TENANTS), 0.0)
    core.place(0.0)
    core.place(10.0)
    assert core.ladder.is_due(20.0)
    count = bytecodes(lambda: core.place(20.0))
    assert core.ladder.num_held == len(LADDER.targets_s) * NUM_TENANTS
    return count


def test_a_look_at_the_ladder_does_not_grow_with_the_queue_either() -> None:
    few, many = (of_a_look(number) for number in (1_000, 10_000))
    assert 100 < many <= 1.1 * few


def test_nor_does_it_matter_how_many_have_workers_that_they_avoid() -> None:
    few, many = (per_decision("fair", number, WorkerId("worker-0")) for number in (1_000, 10_000))
    assert 100 < many <= 1.1 * few


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_a_decision_takes_as_many_operations_with_a_hundred_times_as_many_waiting(policy: str) -> None:
    few, many = (per_decision(policy, number) for number in (1_000, 100_000))
    assert 100 < many <= 1.1 * few


def test_the_count_sees_work_that_grows_with_the_queue() -> None:
    """The control: a look at everything that waits."""

    def look(num_waiting: int) -> int:
        core = SchedulerCore(Rules(max_waiting=10**9, max_waiting_tokens=10**12), POLICIES["fair"](), 0.0)
        fleet(core, 1)
        for number in range(num_waiting):
            core.acquire(GATEWAY, acquire(number, NUM_TENANTS), 0.0)
        return bytecodes(lambda: list(core.room.policy.candidates("m")))

    assert look(2000) > 3 * look(200)
