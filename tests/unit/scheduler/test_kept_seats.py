"""The last free seats of a worker: who gets them, and that nobody waits for ever because of them."""

import random

import pytest

from bench.tenants.fleet import UNBOUNDED, Ask, World
from scheduler.core.band_use import LEEWAY
from scheduler.core.fair_queue import MOST_OVER, FairPolicy
from scheduler.core.outputs import Placed
from scheduler.core.share_queue import FairRules
from scheduler.core.state import SchedulerCore
from services.domain.generation import Band, RequestClass
from services.domain.ids import TenantId, WorkerId
from tests.unit.scheduler.builders import GATEWAY, acquire, core, hello, only, report

SEATS, KEPT = 32, 4
WORKER = WorkerId("worker-0")


def with_free_seats(count: int, *, over: str = "flood", **rules: float) -> SchedulerCore:
    """Return a scheduler whose worker has so many free seats, and which knows who is over its share."""
    scheduler = core(policy=FairPolicy(), **rules)
    scheduler.worker_connected(hello(pages=10_000, max_sequences=SEATS, max_step_tokens=4096), 0.0)
    scheduler.report(WORKER, report(granted=count, startable=10_000, running=SEATS - count), 0.0)
    scheduler.fleet.workers[WORKER].over_share = {TenantId(over): 1.0}
    return scheduler


def ask(scheduler: SchedulerCore, tenant: str, band: Band = Band.STANDARD, count: int = SEATS) -> None:
    for number in range(count):
        scheduler.acquire(GATEWAY, acquire(f"{tenant}{number}", tenant=tenant, band=band), 0.0)


def placed(scheduler: SchedulerCore) -> list[str]:
    return [str(output.acquire.tenant) for output in only(Placed, scheduler.place(0.0))]


def test_a_tenant_over_its_share_takes_all_but_the_last_free_seats() -> None:
    scheduler = with_free_seats(10)
    ask(scheduler, "flood")
    assert placed(scheduler) == ["flood"] * (10 - KEPT)
    ask(scheduler, "quiet")
    assert placed(scheduler) == ["quiet"] * KEPT


@pytest.mark.parametrize(
    ("over", "rules"),
    [
        pytest.param("somebody else", {}, id="it is within its share"),
        pytest.param("flood", {"max_over_share": 1.0}, id="no seats are kept"),
    ],
)
def test_otherwise_it_takes_every_seat(over: str, rules: dict[str, float]) -> None:
    scheduler = with_free_seats(10, over=over, **rules)
    ask(scheduler, "flood")
    assert placed(scheduler) == ["flood"] * 10


def test_what_a_band_is_kept_from_no_lower_one_gets() -> None:
    scheduler = with_free_seats(KEPT)
    ask(scheduler, "flood", Band.STANDARD)
    ask(scheduler, "below", Band.BATCH)
    assert placed(scheduler) == []
    ask(scheduler, "above", Band.INTERACTIVE, 1)
    ask(scheduler, "beside", Band.STANDARD, 1)
    found = placed(scheduler)
    assert {"above", "beside"} <= set(found)
    assert len(found) <= 3, "the band below may be owed one by its floor"


def test_a_lower_band_has_the_last_seats_where_nobody_is_kept_from_them() -> None:
    scheduler = with_free_seats(KEPT)
    ask(scheduler, "below", Band.BATCH)
    assert placed(scheduler) == ["below"] * KEPT


@pytest.mark.parametrize(("tokens", "is_placed"), [(257, True), (256, False)])
def test_what_takes_several_steps_holds_back_nothing_that_takes_one(tokens: int, is_placed: bool) -> None:
    scheduler = core(policy=FairPolicy())
    scheduler.worker_connected(
        hello(pages=10_000, max_sequences=SEATS, max_step_tokens=512, max_prefill_tokens=256), 0.0
    )
    scheduler.report(WORKER, report(granted=SEATS, startable=10_000), 0.0)
    for number in range(2):
        asked = acquire(f"flood{number}", tenant="flood", tokens=tokens, kind=RequestClass.SHORT)
        scheduler.acquire(GATEWAY, asked, 0.0)
    assert placed(scheduler) == ["flood"] * (1 if is_placed else 2), "so much fills its window"
    scheduler.acquire(GATEWAY, acquire("quiet", tenant="quiet", tokens=200), 0.0)
    assert placed(scheduler) == (["quiet"] if is_placed else [])


@pytest.mark.parametrize("tokens", [200, 600, 2000, 8000])
@pytest.mark.parametrize("seed", range(2))
def test_whoever_is_held_back_is_passed_by_no_more_service_than_the_bound(seed: int, tokens: int) -> None:
    draw, rules = random.Random(seed), FairRules()
    flood = Ask(tenant="flood", num_prompt_tokens=tokens, num_output_tokens=16)
    others = [
        Ask(tenant=f"t{i}", num_prompt_tokens=draw.randint(50, 500), num_output_tokens=draw.randint(8, 64))
        for i in range(draw.randint(1, 4))
    ]
    gaps, last, was_over = [0.0], 0.0, False
    world: World

    def on_placed(ask: Ask) -> tuple[Ask, ...]:
        nonlocal last, was_over
        was_over |= world.core.fleet.workers[WORKER].over_share.get(TenantId("flood"), 0.0) > 0.0
        if ask is not flood:
            return ()
        service = sum(world.used[one.tenant].service for one in others)
        gaps.append(service - last)
        last = service
        return (flood,)  # It always has a backlog.

    world = World(FairPolicy(rules), rules=UNBOUNDED, seats=SEATS, on_placed=on_placed)
    for _ in range(64):
        world.ask(0.0, flood)
    at = 10.0
    while at < 35.0:
        # Others come and go, in bursts that take every seat they can get.
        at += draw.expovariate(0.3)
        for _ in range(draw.randint(1, 40)):
            world.ask(at, draw.choice(others))
    world.run_until(45.0)
    most_prompt = max(one.num_prompt_tokens for one in (*others, flood))
    live = SEATS * (most_prompt + rules.output_cost * 64)
    bound = MOST_OVER * (1 + len(others)) / LEEWAY + len(others) * (rules.quantum + live)
    assert len(gaps) > 10, "it was served all the time"
    assert max(gaps) <= bound
