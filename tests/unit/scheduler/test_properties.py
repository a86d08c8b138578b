"""What holds for every run of a simulated fleet: credits, one answer each, order, progress, nothing left."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.fair_queue import FairPolicy
from scheduler.core.request import Requeue, Terms
from services.domain.bands import Bands
from services.domain.errors import LimitExpired, QueueFull
from services.domain.generation import Band, Limits, RequestClass
from services.domain.ids import GatewayId, TenantId, WorkerId
from tests.unit.scheduler.builders import acquire
from tests.unit.scheduler.simulation import World, last_attempts

SEEDS = st.integers(0, 2**32 - 1)
POOLS = st.lists(st.integers(4, 80), min_size=1, max_size=4)


def edit(world: World, gateway: str) -> None:
    """A tenant weighs more or less, and some of what a gateway asked for, placed or not, moves."""
    draw = world.random
    mine = [key for key, (name, _, _) in world.asked.items() if name == gateway]
    moved = Requeue(
        keys=tuple(draw.sample(mine, min(len(mine), 8))),
        band=draw.choice(list(Bands())),
        request_class=draw.choice(list(RequestClass)),
    )
    weights = {TenantId(draw.choice("abcd")): draw.choice([0.5, 1.0, 4.0])}
    world.core.edited(GatewayId(gateway), Terms(weights, (moved,)))


def storm(world: World, num_requests: int, *, deaths: bool, edits: bool = False) -> None:
    """Requests of all sizes and bands arrive; some leave, run out of time, or lose gateway or worker."""
    draw = world.random
    for i in range(num_requests):
        gateway = f"gateway-{draw.randrange(3)}"
        limits = Limits(queue_s=draw.uniform(0.05, 2.0)) if draw.random() < 0.1 else Limits()
        asked = acquire(
            f"r{i}",
            tokens=draw.choice([1, 16, 40, 100, 400, 1200]),
            output=draw.choice([4, 60]),
            band=draw.choice(list(Bands())),
            limits=limits,
            n=draw.choice([1, 1, 1, 4]),
            tenant=draw.choice("abc"),
            kind=draw.choice(list(RequestClass)),
        )
        world.ask(gateway, asked)
        if draw.random() < 0.1 and asked.key not in world.answers:
            world.abandon(asked.key)
        if deaths and draw.random() < 0.03:
            world.kill_gateway(gateway)
        if deaths and draw.random() < 0.03:
            world.kill_worker(WorkerId(f"worker-{draw.randrange(4)}"))
        if edits and draw.random() < 0.2:
            edit(world, gateway)
        if draw.random() < 0.7:
            world.run_until(world.now + draw.expovariate(20.0))


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, pools=POOLS, deaths=st.booleans(), edits=st.booleans(), fair=st.booleans())
def test_every_request_is_answered_once_and_nothing_is_left(
    seed: int, pools: list[int], deaths: bool, edits: bool, fair: bool
) -> None:
    policy = FairPolicy()
    world = World(seed, pools, policy=policy if fair else None)
    storm(world, 60, deaths=deaths, edits=edits)
    world.run_until(world.now + 300.0)
    for key in world.asked:
        assert world.answers[key] <= 1, "answered twice"
    for key in last_attempts(world).values():
        assert world.answers[key] == 1 or key in world.forsaken, "never answered"
    core = world.core
    assert len(core.room) == len(core.live) == core.room.num_tokens == 0
    assert len(policy._charges) == 0
    for worker in core.fleet.workers.values():
        assert (worker.outstanding, [worker.outstanding_tokens(kind) for kind in RequestClass]) == (
            {},
            [0, 0],
        )
        assert worker.startable_pages == world.workers[worker.hello.worker].capacity.total_pages


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, pools=POOLS)
def test_equal_requests_of_a_band_are_placed_in_their_order(seed: int, pools: list[int]) -> None:
    world = World(seed, pools)
    storm(world, 60, deaths=False)
    world.run_until(world.now + 300.0)
    order = {key: i for i, key in enumerate(world.placed)}
    last: dict[tuple[object, ...], int] = {}
    for key, (_, asked, _) in world.asked.items():
        if key in order:
            lengths = asked.num_prompt_tokens, asked.max_output_tokens, asked.num_choices
            shape = asked.band, asked.request_class, lengths
            assert order[key] > last.get(shape, -1)
            last[shape] = order[key]


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, max_bypasses=st.integers(0, 10), fair=st.booleans())
def test_no_head_is_passed_more_often_than_allowed(seed: int, max_bypasses: int, fair: bool) -> None:
    world = World(seed, [80], policy=FairPolicy() if fair else None, max_bypasses=max_bypasses)
    for i in range(8):
        world.ask("gateway-0", acquire(f"big{i}", tokens=1200, output=20))
    for i in range(80):
        world.ask("gateway-0", acquire(f"small{i}", tokens=16, output=40))
        world.run_until(world.now + 0.03)
        for request in world.core.room.policy.candidates("m"):
            assert request.bypassed <= max_bypasses
    world.run_until(world.now + 120.0)
    assert len(world.core.room) == 0


def test_strict_bands_hold_under_overload() -> None:
    world = World(7, [40])
    for i in range(300):
        world.ask("gateway-0", acquire(f"b{i}", band=Band.BATCH, output=8))
    world.run_until(1.0)
    world.ask("gateway-0", acquire("urgent", band=Band.INTERACTIVE, output=8))
    before = len(world.placed)
    world.run_until(2.0)
    names = [key.request_id for key in world.placed[before:]]
    assert names[0] == "urgent"


@pytest.mark.failure("B060")
@pytest.mark.parametrize(("max_waiting", "max_tokens"), [(400, 1_000_000), (10_000, 6_400)])
def test_under_tenfold_overload_goodput_stays_and_what_is_too_much_is_told_when_to_come_back(
    max_waiting: int, max_tokens: int
) -> None:
    """Ten times what can be served, by callers who wait ten seconds; each bound of the queue by itself."""
    world = World(11, [40], slots=8, max_waiting=max_waiting, max_waiting_tokens=max_tokens)
    per_second, seconds = 260, 15
    for i in range(per_second * seconds):
        world.ask("gateway-0", acquire(f"r{i}", tokens=16, output=60, limits=Limits(queue_s=10.0)))
        world.run_until(world.now + 1 / per_second)
        assert len(world.core.room) <= max_waiting
        assert world.core.room.num_tokens <= max_tokens
    # Eight at a time (5 of 40 pages each) for 0.3 s: 26 a second. A slot is lost for 2 s where a
    # placement is never submitted (one in twenty), so there are more slots than places.
    assert len(world.placed) >= 0.9 * 26 * seconds
    waits = [world.placed_at[key] - world.asked[key][2] for key in world.placed]
    assert max(waits) <= 10.0, "placed for callers who had given up"
    by_second = Counter(int(at) for at in world.placed_at.values())
    assert min(by_second[second] for second in range(seconds)) >= 0.5 * 26, "it stood still for a time"
    kinds = Counter(type(error) for error in world.refused.values())
    assert set(kinds) == {QueueFull, LimitExpired}
    for error in world.refused.values():
        assert not isinstance(error, QueueFull) or error.detail.retry_after_s is not None
    world.run_until(world.now + 20.0)
    assert len(world.core.room) == world.core.room.num_tokens == 0
    assert not world.placed_at.keys() & world.refused.keys()
    assert len(world.placed) + len(world.refused) == per_second * seconds


@pytest.mark.failure("B062")
def test_a_worker_that_fails_in_every_phase_leaves_no_count_and_the_others_an_even_share() -> None:
    """Placements are lost, abandoned and late on all four; one of them dies again and again as well."""
    world = World(62, [80] * 4)
    bad, others = WorkerId("worker-2"), [WorkerId(f"worker-{i}") for i in (0, 1, 3)]
    for i in range(800):
        world.ask("gateway-0", acquire(f"r{i}", tokens=40, output=20))
        if i % 100 == 50:
            world.kill_worker(bad)
        world.run_until(world.now + 0.03)
    world.run_until(world.now + 300.0)
    for worker in world.core.fleet.workers.values():
        assert worker.outstanding == {}
        assert [worker.outstanding_tokens(kind) for kind in RequestClass] == [0, 0]
        assert worker.startable_pages == world.workers[worker.hello.worker].capacity.total_pages
    assert len(world.core.room) == len(world.core.live) == 0
    share = Counter(world.placed_on.values())
    mean = sum(share[name] for name in others) / len(others)
    assert all(abs(share[name] - mean) <= 0.1 * mean for name in others), share
    assert share[bad] > 0, "it is used again whenever it is back"
