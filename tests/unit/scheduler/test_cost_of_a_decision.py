"""What the core computes for one decision does not grow with the queue: bytecodes are counted, no time.

A loop inside one call of C (a copy of a list, say) counts as one; that no such copy is made of the queue is
seen by the lists' own counters in `test_fair_queue`.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from bench.scheduler import GATEWAY, POLICIES, acquire, decide, fleet
from scheduler.core.rules import Rules
from scheduler.core.state import SchedulerCore
from services.domain.ids import WorkerId

NUM_TENANTS, NUM_WORKERS, NUM_DECISIONS = 100, 8, 40
SCHEDULER = "scheduler.core"


def bytecodes(work: Callable[[], object]) -> int:
    """Return how many bytecodes of the scheduler's core `work` runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "call":
            if not frame.f_globals["__name__"].startswith(SCHEDULER):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def per_decision(policy: str, num_waiting: int, failed: WorkerId | None = None) -> float:
    """Return the bytecodes of one Acquire, one Report and one placement while so many wait.

    Args:
        failed: A worker that all who wait avoid; it says nothing.
    """
    avoid = frozenset() if failed is None else frozenset({(failed, None)})
    rules = Rules(max_waiting=10**9, max_waiting_tokens=10**12, boot_grace_s=0.0)
    core = SchedulerCore(rules, POLICIES[policy](), 0.0)
    names = [name for name in fleet(core, NUM_WORKERS) if name != failed]
    for number in range(num_waiting):
        core.acquire(GATEWAY, acquire(number, NUM_TENANTS)._replace(avoid=avoid), 0.0)
    core.place(0.0)
    decisions = decide(core, names, num_waiting, NUM_TENANTS)
    for _ in range(2 * NUM_WORKERS):  # Positions are told and ranks sent in the first ones.
        decisions(1e-3)

    def some() -> None:
        assert sum(decisions(2e-3) for _ in range(NUM_DECISIONS)) == NUM_DECISIONS

    return bytecodes(some) / NUM_DECISIONS


def test_a_decision_takes_as_many_operations_with_twenty_times_as_many_waiting() -> None:
    few, many = (per_decision("fair", number) for number in (1_000, 20_000))
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
