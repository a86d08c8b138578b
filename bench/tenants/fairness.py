"""The rows of fairness: the same arrivals under FIFO, plain VTC and the fair policy, in virtual time.

The real cores of scheduler and worker run; a step takes what the sim executor's cost model says, messages
take no time. So figures do not depend on the machine. Knows what is asked for; what happens is `scenarios`'.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.tenants.fleet import UNBOUNDED, Ask
from bench.tenants.scenarios import (
    FLOOD,
    LONG_FLOOD,
    MIXED,
    OF_BOTH_CLASSES,
    SHORT_FLOOD,
    WARM_S,
    WEIGHTED,
    Quiet,
    floors,
    locality,
    long_beside_short,
    noisy_neighbour,
    percentile,
    weighted,
)
from bench.tenants.table import Row, policy_row
from scheduler.core.fair_queue import FairPolicy, as_vtc
from scheduler.core.fifo import FifoPolicy
from scheduler.core.policy import QueuePolicy
from scheduler.core.rules import Rules
from scheduler.core.share_queue import FairRules
from services.domain.generation import Band

NO_CLASSES = replace(UNBOUNDED, max_long_share=1.0, max_short_share=1.0)


def policies(rules: FairRules) -> dict[str, Callable[[], QueuePolicy]]:
    """Return the policies of the table's columns."""
    return {
        "fifo": FifoPolicy,
        "vtc": lambda: FairPolicy(as_vtc(rules)),
        "fair": lambda: FairPolicy(rules),
    }


POLICIES = policies(FairRules())


def rules_of(policy: str) -> Rules:
    """Return the rules beside a policy: FIFO knows no classes."""
    return NO_CLASSES if policy == "fifo" else UNBOUNDED


MIXES = {
    "short, other hit rates": WEIGHTED,
    "both classes": OF_BOTH_CLASSES,
    "both, other hit rates": MIXED,
}
"""Tenants with weights by what they ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is done, and what may be asked of so much."""

    num_quiet: int = 1020
    warm_s: float = WARM_S
    p99_steps: int = 2
    mixes: Sequence[str] = tuple(MIXES)
    quantum: float = FairRules().quantum
    """Of the scenarios with weights."""
    times_bound: float = 20.0
    largest_error: float = 0.05
    fifo_s: float = 1200.0
    """Virtual seconds with weights in which FIFO shows what it does; it comes near no ratio ever."""
    num_prefixes: int = 16
    num_prefix_requests: int = 800
    floors_s: float = 300.0
    num_before: int = 500
    """Short requests before long ones; two fifths of it the other way round."""


FULL = Size()
QUICK = Size(
    num_quiet=100,
    warm_s=10.0,
    # Of so few requests the p99 is the slowest one.
    p99_steps=3,
    mixes=("both, other hit rates",),
    quantum=1024.0,
    times_bound=3.0,
    largest_error=0.3,
    fifo_s=60.0,
    num_prefixes=8,
    num_prefix_requests=64,
    floors_s=60.0,
    num_before=100,
)


def _neighbour(size: Size) -> Iterator[Row]:
    def measured(policy: QueuePolicy, flood: Ask | None) -> Quiet:
        return noisy_neighbour(policy, flood=flood, num_quiet=size.num_quiet, warm_s=size.warm_s)

    alone = measured(FairPolicy(), None)
    for flood in (FLOOD, SHORT_FLOOD, LONG_FLOOD):
        beside = {name: measured(make(), flood) for name, make in POLICIES.items()}
        yield from _beside(flood, alone, beside, size.p99_steps)


def _beside(flood: Ask, alone: Quiet, beside: dict[str, Quiet], p99_steps: int) -> Iterator[Row]:
    step_s, least = beside["fair"].step_s, 0.97 * beside["fifo"].tokens_per_s
    p50_s, p99_s = alone.p50_s + step_s, alone.p99_s + p99_steps * step_s
    yield policy_row(
        f"quiet beside a flood of {flood.num_prompt_tokens} ({alone.num_served} asked): TTFT p50, s",
        beside,
        lambda one: f"{one.p50_s:.3f}",
        f"<= {p50_s:.3f} (alone {alone.p50_s:.3f} + 1 step)",
        lambda one: one.num_served == alone.num_served and one.p50_s <= p50_s,
    )
    yield policy_row(
        "  p99, s",
        beside,
        lambda one: f"{one.p99_s:.3f}",
        f"<= {p99_s:.3f} (alone {alone.p99_s:.3f} + {p99_steps} steps)",
        lambda one: one.p99_s <= p99_s,
    )
    yield policy_row(
        "  tokens/s of all",
        beside,
        lambda one: f"{one.tokens_per_s:.0f}",
        f">= {least:.0f} (97 % of FIFO's)",
        lambda one: one.tokens_per_s >= least,
        is_control=False,
    )


def _weights(size: Size) -> Iterator[Row]:
    rules = FairRules(quantum=size.quantum)
    for what in size.mixes:
        shares = {
            name: weighted(
                make(),
                quantum=0.0 if name == "vtc" else rules.quantum,
                asks=MIXES[what],
                times_bound=size.times_bound,
                most_s=size.fifo_s if name == "fifo" else 1e6,
            )
            for name, make in policies(rules).items()
        }
        yield policy_row(
            f"weights 1:2:4, {what}: error of a share",
            shares,
            lambda one: f"{one.worst_error:.3f}",
            f"<= {size.largest_error} at {size.times_bound:.0f} x the bound",
            lambda one: one.times_bound >= size.times_bound and one.worst_error <= size.largest_error,
        )
        yield policy_row(
            "  largest difference / its bound",
            shares,
            lambda one: f"{one.largest_part:.3f}",
            "<= 1 between any two instants",
            lambda one: one.largest_part <= 1.0,
        )


def _prefixes(size: Size) -> Iterator[Row]:
    found = {
        name: locality(make(), num_tenants=size.num_prefixes, num_requests=size.num_prefix_requests)
        for name, make in POLICIES.items()
    }
    yield policy_row(
        "own prefixes of 2k, half in the pool, tokens/s",
        found,
        lambda one: f"{one:.0f}",
        f">= {1.5 * found['vtc']:.0f} (1.5 x plain VTC's)",
        lambda one: one >= 1.5 * found["vtc"],
    )


def _bands(size: Size) -> Iterator[Row]:
    wanted = FairRules().floors
    found = {name: floors(make(), until_s=size.floors_s) for name, make in POLICIES.items()}

    def has_floors(shares: dict[Band, float]) -> bool:
        return all(abs(shares[band] - floor) <= 0.02 for band, floor in wanted.items())

    yield policy_row(
        "bands with a backlog, shares",
        found,
        lambda one: "/".join(f"{part:.2f}" for part in one.values()),
        "floors " + "/".join(f"{floor:.2f}" for floor in wanted.values()) + " +- 0.02",
        has_floors,
    )


def _classes(size: Size) -> Iterator[Row]:
    many, some = size.num_before, size.num_before * 2 // 5
    for what, num_long, num_short, which, part in (
        (f"short behind {some} long", some, some // 10, 1, 0.2),
        (f"long behind {many} short", max(1, many // 100), many, 0, 0.9),
    ):
        times = {
            name: long_beside_short(make(), rules_of(name), num_long=num_long, num_short=num_short)[which]
            for name, make in POLICIES.items()
        }
        most_s = part * percentile(times["fifo"], 0.5)
        yield policy_row(
            f"{what}: TTFT p50, s",
            times,
            lambda one: f"{percentile(one, 0.5):.1f}",
            f"<= {most_s:.1f} ({part} x FIFO's)",
            lambda one, most_s=most_s: percentile(one, 0.5) <= most_s,  # type: ignore[misc]
        )


SCENARIOS: dict[str, Callable[[Size], Iterator[Row]]] = {
    "neighbour": _neighbour,
    "weights": _weights,
    "prefixes": _prefixes,
    "bands": _bands,
    "classes": _classes,
}


def rows(size: Size) -> Iterator[Row]:
    """Measure and judge, one row after the other."""
    for scenario in SCENARIOS.values():
        yield from scenario(size)
