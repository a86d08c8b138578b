"""Who on a full worker yields to a request, and to whom nobody does."""

import pytest

from bench.tenants.fleet import Ask
from bench.tenants.fleet import World as Chain
from scheduler.core.band_use import LEEWAY, BandUse
from scheduler.core.fair_queue import FairPolicy
from scheduler.core.outputs import Placed, Ranks
from scheduler.core.state import SchedulerCore
from services.domain.generation import Band, RequestClass
from services.domain.ids import TenantId, WorkerId
from tests.unit.scheduler.builders import GATEWAY, acquire, core, hello, key, only, report

WORKER = WorkerId("worker-0")
SEATS = 10
LATER = 5.0
FLOOD, QUIET, STEADY = map(TenantId, ("flood", "quiet", "steady"))


def placed(scheduler: SchedulerCore, now: float) -> list[str]:
    return [output.acquire.key.request_id for output in only(Placed, scheduler.place(now))]


def full_of(band: Band, *, startable: int = 100) -> SchedulerCore:
    """Return a scheduler whose only worker has a running request in each seat."""
    scheduler = core(policy=FairPolicy())
    scheduler.worker_connected(hello(pages=10_000, max_sequences=SEATS, max_step_tokens=4096), 0.0)
    scheduler.report(WORKER, report(granted=SEATS, startable=10_000), 0.0)
    for i in range(SEATS):
        scheduler.acquire(GATEWAY, acquire(f"old{i}", tokens=64, band=band, tenant="flood"), 0.0)
    assert len(placed(scheduler, 0.0)) == SEATS
    started = [key(f"old{i}") for i in range(SEATS)]
    said = report(granted=SEATS, seen=SEATS, startable=startable, running=SEATS, started=started)
    scheduler.report(WORKER, said, 0.1)
    return scheduler


def reported(scheduler: SchedulerCore, now: float, *, ended: int = 0, output: int = 0) -> list[str]:
    """Let the worker say again that it is full; return what is placed."""
    view = scheduler.fleet.workers[WORKER]
    said = report(
        granted=view.report.granted,
        seen=view.placed,
        startable=view.report.startable_pages,
        running=SEATS,
        started=list(view.outstanding),
        ended=[key(f"old{i}") for i in range(ended)],
        output_tokens={"flood": output},
    )
    scheduler.report(WORKER, said, now)
    return placed(scheduler, now)


def test_a_higher_band_is_placed_where_a_lower_one_has_all_seats() -> None:
    scheduler = full_of(Band.BATCH)
    scheduler.acquire(GATEWAY, acquire("asks", band=Band.INTERACTIVE), LATER)
    assert placed(scheduler, LATER) == [], "a seat may become free in a moment"
    assert reported(scheduler, LATER + 0.1) == ["asks"]


@pytest.mark.parametrize("band", [Band.STANDARD, Band.BATCH])
def test_neither_equals_nor_lower_bands_make_anybody_yield(band: Band) -> None:
    scheduler = full_of(Band.STANDARD)
    scheduler.acquire(GATEWAY, acquire("asks", band=band, tenant="quiet"), LATER)
    assert reported(scheduler, LATER + 60.0) == []


def test_one_at_a_time_is_placed_beyond_the_grants() -> None:
    scheduler = full_of(Band.BATCH)
    for name in ("first", "second"):
        scheduler.acquire(GATEWAY, acquire(name, band=Band.INTERACTIVE), LATER)
    view = scheduler.fleet.workers[WORKER]
    scheduler.report(WORKER, report(granted=SEATS, seen=SEATS, startable=100, running=SEATS), LATER + 1.0)
    assert placed(scheduler, LATER + 1.0) == ["first"]
    scheduler.report(WORKER, report(granted=SEATS, seen=SEATS, startable=100, running=SEATS), LATER + 1.1)
    assert placed(scheduler, LATER + 1.1) == [], "the first has not started"
    assert view.placed == SEATS + 1
    assert reported(scheduler, LATER + 1.2) == ["second"], "it has"


def test_a_lower_band_keeps_the_seats_of_its_floor() -> None:
    scheduler = full_of(Band.STANDARD)
    view = scheduler.fleet.workers[WORKER]
    for i in range(SEATS):
        scheduler.acquire(GATEWAY, acquire(f"asks{i}", band=Band.INTERACTIVE), LATER)
    taken = []
    for i in range(3 * SEATS):
        # Each that comes in has made an old one wait, which has no seat now but will come back.
        taken += reported(scheduler, LATER + 1.0 + i, ended=len(taken))
    assert len(taken) == SEATS - 1, "a tenth of ten seats is the standard band's"
    assert view.placed == SEATS + len(taken)


def over_its_share(scheduler: SchedulerCore) -> None:
    """Let the flood take far more than its part while another tenant is served too."""
    scheduler.acquire(GATEWAY, acquire("steady", tenant="steady"), 1.0)
    view = scheduler.fleet.workers[WORKER]
    said = report(granted=SEATS, seen=SEATS, startable=100, running=SEATS, output_tokens={"flood": 100_000})
    (ranks,) = only(Ranks, scheduler.report(WORKER, said, 2.0))
    assert ranks.over_share[FLOOD] > 0.0
    assert view.over_share == ranks.over_share
    scheduler.abandon(key("steady"), None)


@pytest.mark.parametrize(
    ("is_over", "num_more", "yields"), [(True, 0, True), (False, 0, False), (True, 3, False)]
)
def test_inside_a_band_a_tenant_over_its_share_yields_to_who_asks_for_less_than_its_own(
    is_over: bool, num_more: int, yields: bool
) -> None:
    scheduler = full_of(Band.STANDARD)
    if is_over:
        over_its_share(scheduler)
    scheduler.acquire(GATEWAY, acquire("asks", tokens=32, tenant="quiet"), LATER)
    for i in range(num_more):
        scheduler.acquire(GATEWAY, acquire(f"more{i}", tokens=3000, tenant="quiet"), LATER)
    assert reported(scheduler, LATER + 1.0, output=100_000 * is_over) == (["asks"] if yields else [])


def test_the_long_class_yields_to_the_short_one_too() -> None:
    scheduler = full_of(Band.STANDARD)
    over_its_share(scheduler)
    scheduler.acquire(GATEWAY, acquire("asks", kind=RequestClass.LONG, tokens=1000, tenant="quiet"), LATER)
    assert reported(scheduler, LATER + 1.0, output=100_000) == ["asks"]


def test_nobody_yields_for_pages_that_all_of_them_together_do_not_hold() -> None:
    scheduler = full_of(Band.BATCH, startable=0)
    scheduler.acquire(GATEWAY, acquire("large", tokens=3000, band=Band.INTERACTIVE), LATER)
    assert reported(scheduler, LATER + 1.0) == [], "ten prompts of four pages are 40, it needs 189"
    scheduler.acquire(GATEWAY, acquire("small", tokens=320, band=Band.INTERACTIVE), LATER)
    assert reported(scheduler, LATER + 2.0) == ["small"]


def test_on_a_real_worker_the_one_placed_beyond_the_grants_starts_in_its_next_steps() -> None:
    def first_token_s(band: Band) -> float:
        world = Chain(FairPolicy(), seats=8)
        for _ in range(8):
            world.ask(0.0, Ask(tenant="night", num_prompt_tokens=64, num_output_tokens=4000, band=Band.BATCH))
        world.ask(5.0, Ask(tenant="day", num_prompt_tokens=64, num_output_tokens=8, band=band))
        world.run_until(200.0)
        asked = next(one for one in world.requests if one.ask.tenant == "day")
        assert asked.first_token is not None
        assert all(one.ended is not None for one in world.requests), "who yielded comes to its end too"
        return asked.first_token - asked.arrived

    assert first_token_s(Band.INTERACTIVE) < 1.0
    assert first_token_s(Band.BATCH) > 5.0, "its equals yield nothing: it waits for an end"


# Who is over its share


def served(use: BandUse, **costs: float) -> None:
    for tenant, cost in costs.items():
        use.served(TenantId(tenant), cost)


def test_whoever_takes_what_others_leave_is_over_its_share_and_only_that_one() -> None:
    use = BandUse(most=10_000.0)
    for tenant in (FLOOD, QUIET):
        use.came(tenant, 1.0)
    for _ in range(100):
        served(use, flood=770.0, quiet=230.0)
    assert use.level(FLOOD) > 9_000.0, "145 for each thousand, as far as it is remembered"
    assert use.level(QUIET) < 500.0
    for _ in range(100):
        served(use, flood=500.0, quiet=500.0)
    assert use.level(FLOOD) < 1_000.0, "an even share lets it fall"


def test_neither_is_who_is_alone_or_has_its_weights_part() -> None:
    alone = BandUse(most=10_000.0)
    alone.came(FLOOD, 2.0)
    served(alone, flood=1e6)
    assert alone.level(FLOOD) == 0.0
    weighted = BandUse(most=10_000.0)
    weighted.came(FLOOD, 4.0)
    weighted.came(QUIET, 1.0)
    for _ in range(1000):
        served(weighted, flood=400.0, quiet=100.0)
    assert max(weighted.level(FLOOD), weighted.level(QUIET)) <= 100.0 * LEEWAY


def test_who_has_nothing_waiting_or_served_is_forgotten() -> None:
    use = BandUse(most=10_000.0)
    for tenant in (FLOOD, QUIET):
        use.came(tenant, 1.0)
    use.came(FLOOD, 1.0)
    served(use, flood=5_000.0)
    use.left(FLOOD)
    assert use.level(FLOOD) > 1_000.0
    use.left(FLOOD)
    assert use.level(FLOOD) == 0.0
