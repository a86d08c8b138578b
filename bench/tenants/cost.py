"""What one decision of the scheduler's core costs: bytecodes counted, whatever the machine, and CPU time.

A loop inside one call of C (a copy of a list, say) counts as one bytecode; that no such copy is made of the
queue is seen by the lists' own counters in `tests/unit/scheduler/test_fair_queue.py`.
"""

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from bench.scheduler import GATEWAY, POLICIES, acquire, decide, fleet, measure
from bench.tenants.table import Row, policy_row
from scheduler.core.degrade import LadderRules
from scheduler.core.rules import Rules
from scheduler.core.state import SchedulerCore
from services.domain.ids import WorkerId

NUM_TENANTS, NUM_WORKERS, NUM_DECISIONS = 100, 8, 40
SCHEDULER = "scheduler.core"
NO_LADDER = LadderRules()


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


def per_decision(
    policy: str, num_waiting: int, failed: WorkerId | None = None, ladder: LadderRules = NO_LADDER
) -> float:
    """Return the bytecodes of one Acquire, one Report and one placement while so many wait.

    Args:
        failed: A worker that all who wait avoid; it says nothing.
        ladder: The time is too short for it to climb.
    """
    avoid = frozenset() if failed is None else frozenset({(failed, None)})
    rules = Rules(max_waiting=10**9, max_waiting_tokens=10**12, boot_grace_s=0.0, ladder=ladder)
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


def rows(num_waiting: int, seconds: float) -> Iterator[Row]:
    """Measure and judge; the second row takes `seconds` of CPU time for each policy."""
    growth = {name: (per_decision(name, 1_000), per_decision(name, num_waiting)) for name in POLICIES}
    yield policy_row(
        f"bytecodes of a decision, 1,000 / {num_waiting:,} waiting",
        growth,
        lambda one: f"{one[0]:.0f} / {one[1]:.0f}",
        "flat: <= 1.1 times",
        lambda one: one[1] <= 1.1 * one[0],
        is_control=False,
    )
    placed = {name: measure(name, 50_000, NUM_WORKERS, 1000, seconds) for name in POLICIES}
    yield policy_row(
        "  admissions per CPU-second, 50,000 waiting",
        placed,
        lambda one: f"{one:.0f}",
        ">= 5000",
        lambda one: one >= 5000,
        is_control=False,
    )
