"""Short and long requests beside each other, and what workers hear of their tenants' shares."""

import pytest

from scheduler.core.fair_queue import FairPolicy
from scheduler.core.outputs import Placed, Ranks
from scheduler.core.state import SchedulerCore
from services.domain.generation import RequestClass
from services.domain.ids import WorkerId
from tests.unit.scheduler.builders import GATEWAY, acquire, core, hello, key, only, report

LONG = RequestClass.LONG
WORKER = WorkerId("worker-0")


def with_worker(seats: int = 10, *names: str, **rules: object) -> SchedulerCore:
    scheduler = core(policy=FairPolicy(), **rules)  # type: ignore[arg-type]
    for name in names or ("worker-0",):
        scheduler.worker_connected(hello(name, pages=10_000, max_sequences=seats), 0.0)
        scheduler.report(WorkerId(name), report(granted=seats, startable=10_000), 0.0)
    return scheduler


def placed(scheduler: SchedulerCore, now: float = 0.0) -> list[str]:
    return [output.acquire.key.request_id for output in only(Placed, scheduler.place(now))]


def start_all(scheduler: SchedulerCore, now: float, granted: int = 10) -> None:
    """Let the worker say that it has seen and started everything."""
    view = scheduler.fleet.workers[WORKER]
    said = report(
        granted=granted, seen=view.placed, startable=10_000, running=1, started=list(view.outstanding)
    )
    scheduler.report(WORKER, said, now)


def test_a_long_prompt_that_has_not_started_holds_back_no_short_one() -> None:
    scheduler = with_worker()
    for i in range(3):
        scheduler.acquire(GATEWAY, acquire(f"long{i}", tokens=3000, kind=LONG), 0.0)
    assert placed(scheduler) == ["long0"], "one long prompt fills the window of its class"
    scheduler.acquire(GATEWAY, acquire("short", tokens=128), 0.1)
    assert placed(scheduler, 0.1) == ["short"]


@pytest.mark.parametrize(("share", "room"), [(0.8, True), (1.0, False)])
def test_long_requests_leave_seats_for_short_ones(share: float, room: bool) -> None:
    scheduler = with_worker(max_long_share=share)
    for i in range(20):
        scheduler.acquire(GATEWAY, acquire(f"long{i}", tokens=1000, kind=LONG), 0.0)
    count = 0
    while newly := len(placed(scheduler)):
        count += newly
        start_all(scheduler, 0.0)
    assert count == 10 * share
    scheduler.acquire(GATEWAY, acquire("short"), 0.1)
    assert placed(scheduler, 0.1) == (["short"] if room else [])


def test_short_requests_leave_seats_for_long_ones_that_wait_and_for_nobody_else() -> None:
    scheduler = with_worker(max_short_share=0.8)
    for i in range(10):
        scheduler.acquire(GATEWAY, acquire(f"short{i}"), 0.0)
    assert len(placed(scheduler)) == 10, "alone they take every seat"
    scheduler = with_worker(max_short_share=0.8)
    for i in range(40):
        scheduler.acquire(GATEWAY, acquire(f"short{i}"), 0.0)
    scheduler.acquire(GATEWAY, acquire("long0", tokens=3000, kind=LONG), 0.0)
    scheduler.acquire(GATEWAY, acquire("long1", tokens=3000, kind=LONG), 0.0)
    first = placed(scheduler)
    assert (len(first), first[-1]) == (9, "long0")
    start_all(scheduler, 0.1)
    assert placed(scheduler, 0.1) == ["long1"]


def test_with_one_seat_short_and_long_ones_get_their_parts() -> None:
    scheduler = with_worker(seats=1)
    for i in range(200):
        scheduler.acquire(GATEWAY, acquire(f"short{i}", tokens=500, tenant="a"), 0.0)
    for i in range(20):
        scheduler.acquire(GATEWAY, acquire(f"long{i}", tokens=4000, tenant="b", kind=LONG), 0.0)
    tokens = {"a": 0, "b": 0}
    scheduler.report(WORKER, report(granted=1, startable=10_000), 0.0)
    for number in range(1, 91):
        (given,) = only(Placed, scheduler.place(float(number)))
        tokens[given.acquire.tenant] += given.acquire.num_prompt_tokens
        ended = report(granted=1 + number, seen=number, startable=10_000, ended=[given.acquire.key])
        scheduler.report(WORKER, ended, float(number))
    assert abs(tokens["a"] - tokens["b"]) <= 2 * 4096 + 4500


@pytest.mark.parametrize("behind", [True, False])
def test_short_ones_take_the_last_seats_too_while_their_tenant_is_behind(behind: bool) -> None:
    scheduler = with_worker(max_short_share=0.8)
    scheduler.acquire(GATEWAY, acquire("long0", tokens=3000, tenant="b", kind=LONG), 0.0)
    for i in range(40):
        scheduler.acquire(GATEWAY, acquire(f"short{i}", tokens=10, tenant="a"), 0.0)
    scheduler.acquire(GATEWAY, acquire("long1", tokens=3000, tenant="b", kind=LONG), 0.0)
    first = placed(scheduler)
    assert (len(first), first.count("long0")) == (9, 1)
    start_all(scheduler, 0.1)
    if behind:
        used = report(granted=10, seen=9, startable=10_000, running=9, output_tokens={"b": 8_000})
        scheduler.report(WORKER, used, 0.2)
    assert placed(scheduler, 0.2)[0].startswith("short" if behind else "long")


def test_short_heads_without_room_do_not_hide_long_ones() -> None:
    scheduler = with_worker(seats=100)
    for i in range(100):
        scheduler.acquire(GATEWAY, acquire(f"short{i}", tokens=300, tenant=f"t{i}"), 0.0)
    scheduler.acquire(GATEWAY, acquire("long", tokens=3000, kind=LONG), 0.0)
    assert placed(scheduler) == ["short0", "long"], "two of 300 tokens exceed a step of 512"


def test_long_requests_go_to_their_own_workers_where_some_are_named() -> None:
    scheduler = with_worker(10, "worker-0", "worker-1", long_workers=frozenset({WorkerId("worker-1")}))
    for i in range(4):
        scheduler.acquire(GATEWAY, acquire(f"short{i}"), 0.0)
    scheduler.acquire(GATEWAY, acquire("long", tokens=3000, kind=LONG), 0.0)
    where = {output.acquire.key.request_id: output.worker for output in only(Placed, scheduler.place(0.0))}
    assert where == {"long": "worker-1"} | {f"short{i}": "worker-0" for i in range(4)}


@pytest.mark.parametrize("named", ["worker-1", "worker-9"])
def test_a_pool_that_is_not_there_leaves_nobody_waiting(named: str) -> None:
    scheduler = with_worker(10, "worker-0", long_workers=frozenset({WorkerId(named)}))
    scheduler.acquire(GATEWAY, acquire("short"), 0.0)
    scheduler.acquire(GATEWAY, acquire("long", tokens=3000, kind=LONG), 0.0)
    assert placed(scheduler) == ["short", "long"]


def test_what_the_pool_is_too_small_for_goes_to_another_worker() -> None:
    scheduler = core(policy=FairPolicy(), long_workers=frozenset({WorkerId("worker-1")}))  # type: ignore[arg-type]
    for name, pages in (("worker-0", 1000), ("worker-1", 100)):
        scheduler.worker_connected(hello(name, pages=pages), 0.0)
        scheduler.report(WorkerId(name), report(granted=5, startable=pages), 0.0)
    scheduler.acquire(GATEWAY, acquire("fits", tokens=1000, kind=LONG), 0.0)
    scheduler.acquire(GATEWAY, acquire("larger", tokens=3000, kind=LONG), 0.0)
    where = {output.acquire.key.request_id: output.worker for output in only(Placed, scheduler.place(0.0))}
    assert where == {"fits": "worker-1", "larger": "worker-0"}


def test_every_choice_of_a_long_request_takes_a_seat_of_its_class() -> None:
    scheduler = with_worker(max_long_share=0.5)
    for i in range(4):
        scheduler.acquire(GATEWAY, acquire(f"long{i}", tokens=100, kind=LONG, n=3), 0.0)
    assert placed(scheduler) == ["long0", "long1"], "five seats: below the limit with three, over it with six"


def test_the_class_counts_are_empty_when_all_have_ended() -> None:
    scheduler = with_worker()
    scheduler.acquire(GATEWAY, acquire("long", tokens=3000, kind=LONG), 0.0)
    scheduler.acquire(GATEWAY, acquire("short"), 0.0)
    placed(scheduler)
    live = scheduler.live
    assert [live.num_seats(WORKER, kind) for kind in RequestClass] == [1, 1]
    start_all(scheduler, 0.1)
    assert [live.num_seats(WORKER, kind) for kind in RequestClass] == [1, 1]
    ended = report(granted=12, seen=2, startable=10_000, ended=[key("long"), key("short")])
    scheduler.report(WORKER, ended, 0.2)
    assert [live.num_seats(WORKER, kind) for kind in RequestClass] == [0, 0]


def test_a_worker_hears_who_of_its_tenants_is_over_its_share() -> None:
    scheduler = with_worker()
    for name in ("small", "large"):
        scheduler.acquire(GATEWAY, acquire(name, tokens=100, tenant=name), 0.0)
        scheduler.acquire(GATEWAY, acquire(f"{name}-waits", tokens=400, tenant=name), 0.0)
    assert placed(scheduler) == ["small", "large"]
    first = report(granted=2, seen=2, startable=10_000, started=[key("small"), key("large")])
    scheduler.report(WORKER, first, 1.0)
    used = report(granted=2, seen=2, startable=10_000, running=2, output_tokens={"large": 8_000})
    (ranks,) = only(Ranks, scheduler.report(WORKER, used, 2.5))
    assert ranks.version == 2
    assert ranks.over_share["small"] < 0 < ranks.over_share["large"]
    assert not only(Ranks, scheduler.report(WORKER, used, 2.6)), "at most one a second"
    ended = report(granted=4, seen=2, startable=10_000, ended=[key("small"), key("large")])
    assert not only(Ranks, scheduler.report(WORKER, ended, 9.0)), "nobody is there to be ranked"
