"""What tenants feel of each other, FIFO beside plain VTC and the fair policy, in virtual time.

Run: `python -m bench.tenants [--quiet 1020] [--times-bound 20]` (a few minutes). The real cores of scheduler
and worker run; a step takes what the sim executor's cost model says, messages take no time. So figures do not
depend on the machine. Judges nothing: `tests/unit/scheduler/test_bench_tenants.py` asserts bounds in small.
"""

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import replace

from bench.tenants.controls import rows as control_rows
from bench.tenants.fleet import UNBOUNDED
from bench.tenants.scenarios import floors, locality, long_beside_short, noisy_neighbour, percentile, weighted
from scheduler.core.fair_queue import FairPolicy, as_vtc
from scheduler.core.fifo import FifoPolicy
from scheduler.core.policy import QueuePolicy
from scheduler.core.rules import Rules
from scheduler.core.share_queue import FairRules
from services.chassis.logging import configure_logging

POLICIES: dict[str, Callable[[], QueuePolicy]] = {
    "fifo": FifoPolicy,
    "vtc": lambda: FairPolicy(as_vtc(FairRules())),
    "fair": FairPolicy,
}
NO_CLASSES = replace(UNBOUNDED, max_long_share=1.0, max_short_share=1.0)


def rules_of(policy: str) -> Rules:
    """Return the rules beside a policy: FIFO knows no classes."""
    return NO_CLASSES if policy == "fifo" else UNBOUNDED


def row(what: str, figures: list[str]) -> None:
    print(f"{what:<58}" + "".join(f"{figure:>16}" for figure in figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--quiet", type=int, default=1020, help="requests of the quiet tenant")
    parser.add_argument("--times-bound", type=float, default=20.0, help="service of the smallest share")
    asked = parser.parse_args()
    row("", list(POLICIES))
    alone = noisy_neighbour(FairPolicy(), flood=False, num_quiet=asked.quiet)
    beside = [noisy_neighbour(make(), flood=True, num_quiet=asked.quiet) for make in POLICIES.values()]
    row(f"quiet tenant alone, TTFT p50 / p99: {alone.p50_s:.3f} / {alone.p99_s:.3f} s", [])
    row(
        f"  beside a flood of 4k prompts ({alone.num_served} requests): p50, s",
        [f"{one.p50_s:.3f}" for one in beside],
    )
    row("  p99, s", [f"{one.p99_s:.3f}" for one in beside])
    row("  seconds of a step with a whole chunk", [f"{one.step_s:.3f}" for one in beside])
    row("  tokens/s of all", [f"{one.tokens_per_s:.0f}" for one in beside])
    quanta = {"fifo": 0.0, "vtc": 0.0, "fair": FairRules().quantum}
    shares = [
        weighted(make(), quantum=quanta[name], times_bound=asked.times_bound, most_s=3600.0)
        for name, make in POLICIES.items()
    ]
    row("weights 1:2:4, largest error of the shares", [f"{one.worst_error:.3f}" for one in shares])
    row(
        "  largest difference by weight / its bound", [f"{one.largest_gap / one.bound:.3f}" for one in shares]
    )
    row(
        "own prefixes of 2k, half in the pool, tokens/s",
        [f"{locality(make()):.0f}" for make in POLICIES.values()],
    )
    bands = [floors(make()) for make in POLICIES.values()]
    row(
        "bands with a backlog, shares",
        ["/".join(f"{part:.2f}" for part in one.values()) for one in bands],
    )
    for num_long, num_short, index, what in (
        (200, 20, 1, "short behind 200 long"),
        (5, 500, 0, "long behind 500 short"),
    ):
        times = [
            long_beside_short(make(), rules_of(name), num_long=num_long, num_short=num_short)[index]
            for name, make in POLICIES.items()
        ]
        row(f"{what}: TTFT p50, s", [f"{percentile(one, 0.5):.1f}" for one in times])
    row("", ["without", "with"])
    configure_logging("bench", level="error")
    for what, verdicts in asyncio.run(control_rows()):
        row(what, verdicts)


if __name__ == "__main__":
    main()
