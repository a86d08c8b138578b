"""What tenants feel of each other, FIFO beside plain VTC and the fair policy, in virtual time.

Run: `python -m bench.tenants [--quiet 1020] [--times-bound 20]` (a few minutes). The real cores of scheduler
and worker run; a step takes what the sim executor's cost model says, messages take no time. So figures do not
depend on the machine. Judges nothing: `tests/unit/scheduler/test_bench_tenants.py` asserts bounds in small.

`--audit` instead lets clients race for quotas in a real store, kills some, edits limits, and computes again
from the store's own log whether any limit was exceeded (`tests/integration/test_quota_audit.py`, in small).
`--side-channel` lets one tenant guess another's prompts and compares the times to its first tokens.
"""

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.tenants.audit import Plan, audit
from bench.tenants.controls import rows as control_rows
from bench.tenants.fleet import UNBOUNDED
from bench.tenants.scenarios import floors, locality, long_beside_short, noisy_neighbour, percentile, weighted
from bench.tenants.side_channel import side_channel
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


def show_audit(num_requests: int, num_tenants: int) -> None:
    """Print what the audit finds, and what it finds where clients send no limits."""
    plans = {
        "limits on": Plan(num_requests=num_requests, num_tenants=num_tenants, num_kills=3),
        "control, limits off": Plan(
            num_requests=num_requests // 10, num_tenants=num_tenants, num_kills=0, is_limited=False
        ),
    }
    for label, plan in plans.items():
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(audit(plan, Path(folder)))
        report = found.report
        print(f"{label}: {num_tenants} tenants, {found.num_edits} edits, {found.num_kills} clients killed")
        print(f"  admitted {report.num_admitted}; {report.num_expired} leases ran out")
        print(f"  refused by {dict(report.refused)}, at {dict(report.scopes)}")
        print(f"  judged by {len(report.versions)} versions, {report.largest_lag_ms} ms old at most")
        print(f"  exceeded: {dict(Counter(one.kind for one in report.findings)) or 'nothing'}")
        print(f"  still reserved: {found.left or 'nothing'}; unknown to the log: {len(found.not_admitted)}")


def show_side_channel(num_guesses: int) -> None:
    """Print how well a tenant can tell another one's prompts, and its own, from fresh ones."""
    for who, seen in asyncio.run(side_channel(num_guesses)).items():
        apart = abs(seen.auc - 0.5) / seen.sigma
        print(f"{who}: {seen.num_cached} of {num_guesses} guesses had cached tokens;", end=" ")
        print(f"AUC of the TTFT {seen.auc:.4f}, {apart:.1f} sigma of {seen.sigma:.4f} from 0.5", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--quiet", type=int, default=1020, help="requests of the quiet tenant")
    parser.add_argument("--times-bound", type=float, default=20.0, help="service of the smallest share")
    parser.add_argument("--audit", action="store_true", help="race for quotas and compute the limits again")
    parser.add_argument("--requests", type=int, default=10_000, help="of the audit")
    parser.add_argument("--tenants", type=int, default=200, help="of the audit")
    parser.add_argument("--side-channel", action="store_true", help="guess another tenant's prompts")
    parser.add_argument("--guesses", type=int, default=1000, help="of each kind")
    asked = parser.parse_args()
    configure_logging("bench", level="error")
    if asked.audit:
        show_audit(asked.requests, asked.tenants)
        return
    if asked.side_channel:
        show_side_channel(asked.guesses)
        return
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
    for what, verdicts in asyncio.run(control_rows()):
        row(what, verdicts)


if __name__ == "__main__":
    main()
