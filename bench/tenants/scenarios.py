"""Tenants beside each other in virtual time: each scenario makes a `World`, lets it run and returns figures.

A scenario says who asks for what; it knows no threshold. Every policy gets the same arrivals.
"""

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass

from bench.tenants.fleet import UNBOUNDED, Ask, Served, World
from scheduler.core.policy import QueuePolicy
from scheduler.core.rules import Rules
from services.domain.bands import Bands
from services.domain.generation import Band

QUIET = Ask(tenant="quiet", num_prompt_tokens=128, num_output_tokens=32)
FLOOD = Ask(tenant="flood", num_prompt_tokens=4096, num_output_tokens=32)
SHORT_FLOOD = Ask(tenant="flood", num_prompt_tokens=2000, num_output_tokens=32)
"""Of prompts that no default calls long, although each takes a worker several steps."""
LONG_FLOOD = Ask(tenant="flood", num_prompt_tokens=8000, num_output_tokens=32)
"""Of prompts that each take a worker so long that the quiet tenant gets more than a quantum meanwhile."""
WARM_S = 20.0
"""Virtual seconds at both ends whose arrivals are not counted: the flood has to fill the worker, the last
ones to get a first token. One that still has none counts as if it came at the end."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """What a tenant felt, and what the worker did."""

    num_served: int
    p50_s: float
    p99_s: float
    step_s: float
    """Median seconds of a step with a whole chunk."""
    tokens_per_s: float
    """Prompt tokens computed and output tokens of all tenants."""


def noisy_neighbour(
    policy: QueuePolicy,
    rules: Rules = UNBOUNDED,
    *,
    flood: Ask | None,
    num_quiet: int,
    warm_s: float = WARM_S,
) -> Quiet:
    """Serve a quiet tenant at a fifth of the capacity, alone or beside a flood of 50 times its half."""
    world = World(policy, rules=rules)
    work_s = world.cost.seconds(
        num_prefill_tokens=QUIET.num_prompt_tokens, num_decodes=32, decode_context_tokens=0
    )
    per_s = 0.2 / work_s
    end = _poisson(world, QUIET, per_s, num_quiet + int(2 * warm_s * per_s), seed=1)
    if flood is not None:
        flood_per_s = 50 * 0.5 * world.cost.prefill_tokens_per_s / flood.num_prompt_tokens
        _poisson(world, flood, flood_per_s, int(end * flood_per_s), seed=2)
    world.run_until(end)
    counted = (one for one in world.requests if one.ask is QUIET and warm_s <= one.arrived < end - warm_s)
    ttfts = sorted((one.first_token or end) - one.arrived for one in counted)
    used = sum(one.uncached + one.output for one in world.used.values())
    steps = sorted(world.full_steps) or [0.0]
    return Quiet(
        num_served=len(ttfts),
        p50_s=percentile(ttfts, 0.5),
        p99_s=percentile(ttfts, 0.99),
        step_s=steps[len(steps) // 2],
        tokens_per_s=used / world.now,
    )


@dataclass(frozen=True, slots=True)
class Shares:
    """Service of backlogged tenants."""

    services: tuple[float, ...]
    weights: tuple[float, ...]
    largest_part: float
    """Most that the service by weight of two tenants ever differed between any two instants, as a part of the
    bound that `fair_queue` derives for these two: 1 is all of it."""
    times_bound: float
    """Service of the smallest share, as a multiple of the largest of these bounds."""

    @property
    def worst_error(self) -> float:
        """Return the largest relative distance from the ratio of the weights."""
        whole = sum(self.services) / sum(self.weights)
        return max(abs(s / w / whole - 1.0) for s, w in zip(self.services, self.weights, strict=True))


WEIGHTED = (
    Ask(tenant="a", num_prompt_tokens=256, num_output_tokens=64, weight=1.0),
    Ask(tenant="b", num_prompt_tokens=1024, num_output_tokens=32, prefix_tokens=768, weight=2.0),
    Ask(tenant="c", num_prompt_tokens=1536, num_output_tokens=128, prefix_tokens=512, weight=4.0),
)
"""Tenants of other lengths and other hit rates."""
OF_BOTH_CLASSES = (
    Ask(tenant="a", num_prompt_tokens=4096, num_output_tokens=32, weight=1.0),
    Ask(tenant="b", num_prompt_tokens=256, num_output_tokens=32, weight=4.0),
    Ask(tenant="c", num_prompt_tokens=3072, num_output_tokens=32, weight=2.0),
)
MIXED = (
    Ask(tenant="a", num_prompt_tokens=3072, num_output_tokens=32, prefix_tokens=2560, weight=1.0),
    Ask(tenant="b", num_prompt_tokens=256, num_output_tokens=96, weight=2.0),
    Ask(tenant="c", num_prompt_tokens=2560, num_output_tokens=32, prefix_tokens=512, weight=4.0),
)
"""Of both classes and other hit rates."""


def weighted(
    policy: QueuePolicy,
    *,
    quantum: float,
    asks: tuple[Ask, ...] = WEIGHTED,
    seats: int = 32,
    times_bound: float = 20.0,
    most_s: float = 1e6,
) -> Shares:
    """Serve tenants with a backlog until the smallest share is `times_bound` times the bound, or for
    `most_s`."""
    world = World(policy, seats=seats, on_placed=lambda ask: (ask,))
    for ask in asks:
        for _ in range(40):
            world.ask(0.0, ask)
    # U of `fair_queue`: one prompt, and the outputs of all that may be live on this worker. Here service is
    # what was computed, and of a tenant one prompt may be charged that is not yet.
    most = [
        (2 * ask.num_prompt_tokens + 2 * world.seats * ask.num_output_tokens) / ask.weight for ask in asks
    ]
    pairs = list(itertools.combinations(range(len(asks)), 2))
    bounds = [2 * quantum + most[one] + most[other] for one, other in pairs]
    lowest, highest = [0.0] * len(pairs), [0.0] * len(pairs)

    def looked() -> bool:
        now = [world.used[ask.tenant].service / ask.weight for ask in asks]
        for place, (one, other) in enumerate(pairs):
            # Two instants may be any: what counts is the range of the difference, not the difference.
            lowest[place] = min(lowest[place], now[one] - now[other])
            highest[place] = max(highest[place], now[one] - now[other])
        return smallest() >= times_bound

    def smallest() -> float:
        return min(world.used[ask.tenant].service for ask in asks) / max(bounds)

    world.run_until(most_s, looked)
    parts = [(most - least) / bound for most, least, bound in zip(highest, lowest, bounds, strict=True)]
    services = tuple(world.used[ask.tenant].service for ask in asks)
    return Shares(services, tuple(ask.weight for ask in asks), max(parts), smallest())


def locality(policy: QueuePolicy, *, num_tenants: int = 16, num_requests: int = 800) -> float:
    """Return tokens a second, cached ones included, of tenants that have each a prefix of 2,048 tokens where
    the pool holds half of the prefixes."""
    prefix = 2048
    num_pages = num_tenants * prefix // 16 // 2 + 8 * 12
    world = World(policy, num_pages=num_pages, seats=8)
    asks = [
        Ask(tenant=f"t{i}", num_prompt_tokens=prefix + 64, num_output_tokens=16, prefix_tokens=prefix)
        for i in range(num_tenants)
    ]
    for i in range(num_requests):
        world.ask(0.0, asks[i % num_tenants])
    world.run_until(1e6)
    assert all(one.ended is not None for one in world.requests), "everything was served"
    return sum(u.uncached + u.cached + u.output for u in world.used.values()) / world.now


def floors(
    policy: QueuePolicy,
    *,
    until_s: float = 300.0,
    bands: Bands = Bands(),  # noqa: B008 (frozen)
) -> dict[Band, float]:
    """Return the part of the service that each band had, all of them with a backlog of the same requests."""
    world = World(policy, on_placed=lambda ask: (ask,))
    for band in bands:
        for _ in range(40):
            world.ask(0.0, Ask(tenant=f"t{band}", num_prompt_tokens=512, num_output_tokens=32, band=band))
    world.run_until(until_s)
    whole = sum(used.service for used in world.used.values())
    return {band: world.used[f"t{band}"].service / whole for band in bands}


def long_beside_short(
    policy: QueuePolicy, rules: Rules, *, num_long: int, num_short: int
) -> tuple[list[float], list[float]]:
    """Return the seconds to the first token of long and of short prompts of one tenant that come at once, the
    more numerous ones first."""
    world = World(policy, rules=rules)
    long = Ask(tenant="one", num_prompt_tokens=4096, num_output_tokens=32)
    short = Ask(tenant="one", num_prompt_tokens=128, num_output_tokens=32)
    counts = sorted(((num_long, long), (num_short, short)), key=lambda pair: -pair[0])
    numbers = itertools.count()
    for count, ask in counts:
        for _ in range(count):
            # Not in the same instant: who comes first is what FIFO goes by.
            world.ask(1e-6 * next(numbers), ask)
    world.run_until(1e6)
    return _first_token_s(world.requests, 4096), _first_token_s(world.requests, 128)


# Inside


def _poisson(world: World, ask: Ask, per_s: float, count: int, *, seed: int) -> float:
    """Let `count` requests arrive at random; return when the last one does."""
    rng, at = random.Random(seed), 0.0
    for _ in range(count):
        at += rng.expovariate(per_s)
        world.ask(at, ask)
    return at


def _first_token_s(requests: Iterable[Served], num_prompt_tokens: int) -> list[float]:
    """Return the seconds to the first token of the prompts of one length, ascending."""
    times = []
    for one in requests:
        if one.ask.num_prompt_tokens == num_prompt_tokens:
            assert one.first_token is not None, "everything was served"
            times.append(one.first_token - one.arrived)
    return sorted(times)


def percentile(ascending: list[float], part: float) -> float:
    return ascending[min(len(ascending) - 1, int(part * len(ascending)))]
