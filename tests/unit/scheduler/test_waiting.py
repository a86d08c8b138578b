"""Who may wait, for how long, and what becomes of requests when peers come and go."""

import pytest

from scheduler.core.boots import Boots
from scheduler.core.fair_queue import FairPolicy
from scheduler.core.outputs import ModelsChanged, Placed, PlacementsMade, Queued, Rejected
from scheduler.core.state import SchedulerCore
from services.domain.errors import LimitExpired, NoWorker, QueueFull, StaleAttempt, UnknownModel
from services.domain.generation import Band, Limits, RequestClass
from services.domain.ids import Epoch, GatewayId, WorkerId
from tests.unit.scheduler.builders import GATEWAY, acquire, core, hello, key, only, report

WORKER = WorkerId("worker-0")


def with_worker(granted: int = 0, **rules: float) -> SchedulerCore:
    scheduler = core(**rules)
    scheduler.worker_connected(hello(), 0.0)
    scheduler.report(WORKER, report(granted=granted), 0.0)
    return scheduler


def test_expired_requests_are_dropped_before_placement() -> None:
    scheduler = with_worker()
    scheduler.acquire(GATEWAY, acquire("a", limits=Limits(queue_s=0.5, total_s=60)), 0.0)
    scheduler.acquire(GATEWAY, acquire("b"), 0.0)
    scheduler.place(0.0)
    scheduler.report(WORKER, report(granted=2), 0.6)
    outputs = scheduler.place(0.6)
    assert [(r.acquire.key, type(r.error)) for r in only(Rejected, outputs)] == [(key("a"), LimitExpired)]
    assert [p.acquire.key for p in only(Placed, outputs)] == [key("b")]


def test_it_wakes_for_the_next_deadline_only() -> None:
    scheduler = with_worker(position_every_s=100.0)
    assert scheduler.next_wake() is None
    scheduler.acquire(GATEWAY, acquire("a", limits=Limits(first_token_s=7.0)), 0.0)
    scheduler.place(4.0)
    assert scheduler.next_wake() == 7.0
    scheduler.abandon(key("a"), None)
    assert scheduler.next_wake() is None


@pytest.mark.failure("B060")
def test_the_queue_is_bounded_in_requests_and_tokens() -> None:
    scheduler = with_worker(max_waiting=3, max_waiting_tokens=1000)
    for name in "abc":
        assert only(Rejected, scheduler.acquire(GATEWAY, acquire(name), 0.0)) == []
    (full,) = only(Rejected, scheduler.acquire(GATEWAY, acquire("d"), 0.0))
    assert isinstance(full.error, QueueFull)
    assert full.error.detail.retry_after_s == 1.0
    assert full.error.detail.metadata["limit"] == "3"
    scheduler.abandon(key("a"), None)
    (too_many,) = only(Rejected, scheduler.acquire(GATEWAY, acquire("e", tokens=940), 0.0))
    assert too_many.error.detail.quota == "queue/m/tokens"
    assert only(Rejected, scheduler.acquire(GATEWAY, acquire("f"), 0.0)) == []


def test_a_flood_of_batch_work_does_not_shut_out_interactive_work() -> None:
    scheduler = with_worker(max_waiting=3)
    for name in "abc":
        scheduler.acquire(GATEWAY, acquire(name, band=Band.BATCH), 0.0)
    assert only(Rejected, scheduler.acquire(GATEWAY, acquire("i", band=Band.INTERACTIVE), 0.0)) == []
    assert len(only(Rejected, scheduler.acquire(GATEWAY, acquire("d", band=Band.BATCH), 0.0))) == 1


def test_a_flood_of_one_tenant_leaves_places_for_others() -> None:
    scheduler = core(policy=FairPolicy(), max_waiting=100)
    scheduler.worker_connected(hello(), 0.0)
    refused = []
    for i in range(200):
        refused += only(Rejected, scheduler.acquire(GATEWAY, acquire(f"f{i}", tenant="flood"), 0.0))
    assert len(scheduler.room) == 80
    assert "requests of this tenant wait for m" in str(refused[0].error)
    assert refused[0].error.detail.retry_after_s is not None
    assert not only(Rejected, scheduler.acquire(GATEWAY, acquire("quiet", tenant="quiet"), 0.0))
    for i in range(900):
        scheduler.acquire(GATEWAY, acquire(f"g{i}", tenant=f"t{i % 9}"), 0.0)
    assert len(scheduler.room) == 100, "together they keep to the bound"


def test_what_comes_back_after_a_reconnect_is_not_refused_for_the_bound_and_keeps_its_turn() -> None:
    scheduler = with_worker(max_waiting=2)
    for name in ("new1", "new2"):
        scheduler.acquire(GATEWAY, acquire(name), 0.0)
    back = [acquire("young", waited_s=1.0), acquire("old", waited_s=5.0)]
    assert only(Rejected, scheduler.gateway_connected(GatewayId("gateway-1"), back, 0.1)) == []
    scheduler.report(WORKER, report(granted=9), 0.2)
    order = [p.acquire.key.request_id for p in only(Placed, scheduler.place(0.2))]
    assert order == ["old", "young", "new1", "new2"]


def test_the_same_key_attaches_a_higher_supersedes_a_lower_is_refused() -> None:
    scheduler = with_worker()
    scheduler.acquire(GATEWAY, acquire("a", attempt=2), 0.0)
    scheduler.place(0.0)
    assert only(Rejected, scheduler.acquire(GATEWAY, acquire("a", attempt=2), 0.1)) == []
    assert [q.key for q in only(Queued, scheduler.place(0.1))] == [key("a", 2)]
    (lower,) = only(Rejected, scheduler.acquire(GATEWAY, acquire("a", attempt=1), 0.2))
    assert isinstance(lower.error, StaleAttempt)
    (former,) = only(Rejected, scheduler.acquire(GATEWAY, acquire("a", attempt=3), 0.3))
    assert former.acquire.key == key("a", 2)
    assert len(scheduler.room) == 1


def test_a_key_asked_again_after_its_placement_hears_the_same_placement() -> None:
    scheduler = with_worker(granted=2)
    scheduler.acquire(GATEWAY, acquire("a"), 0.0)
    (first,) = only(Placed, scheduler.place(0.0))
    assert scheduler.acquire(GATEWAY, acquire("a"), 0.1) == [first]
    outputs = scheduler.acquire(GATEWAY, acquire("a", attempt=2), 0.2)
    assert only(PlacementsMade, outputs) == [
        PlacementsMade(worker=WORKER, highest_seq=1, abandoned=(first.seq,))
    ]
    (second,) = only(Placed, scheduler.place(0.2))
    scheduler.report(WORKER, report(granted=3, seen=2, started=[key("a", 2)]), 0.3)
    assert second.seq == 2
    for attempt in (1, 2):
        (late,) = only(Rejected, scheduler.acquire(GATEWAY, acquire("a", attempt=attempt), 0.4))
        assert isinstance(late.error, StaleAttempt)
    scheduler.report(WORKER, report(granted=3, seen=2, ended=[key("a", 2)]), 0.5)
    assert len(scheduler.live) == 0


def test_a_dead_gateway_gives_back_what_it_did_not_submit() -> None:
    scheduler = with_worker(granted=2)
    other = GatewayId("gateway-1")
    for name in "abc":
        scheduler.acquire(GATEWAY, acquire(name), 0.0)
    scheduler.acquire(other, acquire("d"), 0.0)
    scheduler.place(0.0)
    scheduler.report(WORKER, report(granted=2, seen=1, started=[key("a")]), 0.1)
    assert scheduler.gateway_gone(GATEWAY) == [PlacementsMade(worker=WORKER, highest_seq=2, abandoned=(2,))]
    assert [r.key for r in scheduler.room.of_gateway(other)] == [key("d")]
    assert len(scheduler.room) == 1
    assert scheduler.live.num_on(WORKER) == 1


def test_abandon_leaves_the_queue_or_gives_the_placement_back() -> None:
    scheduler = with_worker(granted=1)
    for name in "ab":
        scheduler.acquire(GATEWAY, acquire(name), 0.0)
    scheduler.place(0.0)
    assert scheduler.abandon(key("b"), None) == []
    assert scheduler.abandon(key("a"), 7) == [], "another placement than the one that exists"
    assert scheduler.abandon(key("a"), None) == [
        PlacementsMade(worker=WORKER, highest_seq=1, abandoned=(1,))
    ], "it crossed the placement"
    assert scheduler.abandon(key("a"), 1) == []
    assert len(scheduler.room) == len(scheduler.live) == 0


def test_after_a_boot_workers_get_time_to_come_back() -> None:
    scheduler = core(position_every_s=1000.0)
    assert scheduler.acquire(GATEWAY, acquire("a"), 0.1) == []
    assert scheduler.acquire(GATEWAY, acquire("b", model="none-such"), 0.1) == []
    assert only(Rejected, scheduler.place(0.1)) == []
    assert scheduler.next_wake() == pytest.approx(3.0)
    scheduler.worker_connected(hello(), 2.5)
    (refused,) = only(Rejected, scheduler.place(3.0))
    assert (refused.acquire.key, type(refused.error)) == (key("b"), UnknownModel)
    (refused,) = only(Rejected, scheduler.acquire(GATEWAY, acquire("c", model="none-such"), 3.1))
    assert isinstance(refused.error, UnknownModel)


def test_requests_wait_while_a_worker_may_come_back() -> None:
    scheduler = with_worker(position_every_s=1000.0)
    scheduler.place(2.0)
    outputs = scheduler.worker_gone(WORKER, 10.0)
    assert [m.num_workers for m in only(ModelsChanged, outputs)[0].models] == [0]
    assert scheduler.acquire(GATEWAY, acquire("a"), 12.0) == []
    assert only(Rejected, scheduler.place(12.0)) == []
    assert scheduler.next_wake() == 25.0
    outputs = scheduler.place(25.0)
    assert [type(r.error) for r in only(Rejected, outputs)] == [NoWorker]
    assert only(ModelsChanged, outputs)[0].models == ()
    assert isinstance(only(Rejected, scheduler.acquire(GATEWAY, acquire("b"), 26.0))[0].error, NoWorker)


def test_a_request_that_avoids_the_only_worker_does_not_wait_for_ever() -> None:
    scheduler = with_worker(granted=5)
    scheduler.acquire(GATEWAY, acquire("a", avoid=["worker-0"]), 0.0)
    assert only(Rejected, scheduler.place(0.0)) == []
    assert [type(r.error) for r in only(Rejected, scheduler.place(15.0))] == [NoWorker]


def test_a_worker_that_comes_back_starts_with_fresh_credits() -> None:
    scheduler = with_worker(granted=1)
    scheduler.acquire(GATEWAY, acquire("a"), 0.0)
    scheduler.place(0.0)
    scheduler.worker_connected(hello(live=[key("a")]), 1.0)
    scheduler.acquire(GATEWAY, acquire("b"), 1.0)
    assert only(Placed, scheduler.place(1.0)) == [], "nothing granted yet"
    scheduler.report(WORKER, report(granted=1, running=1), 1.0)
    assert [p.seq for p in only(Placed, scheduler.place(1.0))] == [1]
    assert scheduler.live.num_on(WORKER) == 2


@pytest.mark.failure("B062")
def test_no_count_is_left_when_requests_end_in_every_way() -> None:
    scheduler = with_worker(granted=10)
    for i in range(10):
        scheduler.acquire(GATEWAY, acquire(f"r{i}", tokens=16), 0.0)
    assert len(only(Placed, scheduler.place(0.0))) == 10
    scheduler.abandon(key("r0"), 1)
    ended = [key(f"r{i}") for i in range(1, 5)]  # refused, cancelled or failed before they started
    scheduler.report(WORKER, report(granted=14, seen=5, ended=ended), 0.1)
    scheduler.report(WORKER, report(granted=14, seen=10, started=[key("r5"), key("r6")]), 0.2)
    scheduler.report(WORKER, report(granted=14, seen=10, ended=[key("r5"), key("r6")]), 0.3)
    # r7, r8 and r9 were never submitted and nobody says so: they cease to count by time.
    scheduler.report(WORKER, report(granted=17, seen=10), 60.0)
    view = scheduler.fleet.workers[WORKER]
    assert len(scheduler.live) == 0
    assert (view.outstanding, view.outstanding_tokens(RequestClass.SHORT), view.load_tokens) == ({}, 0, 0)
    assert (view.free_credits, view.startable_pages) == (7, 64)


def test_positions_are_told_once_a_second_when_they_changed_notably() -> None:
    scheduler = with_worker()
    for i in range(20):
        scheduler.acquire(GATEWAY, acquire(f"r{i}"), 0.0)
    assert [q.position for q in only(Queued, scheduler.place(0.0))] == list(range(1, 21))
    scheduler.report(WORKER, report(granted=6), 0.5)
    assert only(Queued, scheduler.place(0.5)) == []
    told = only(Queued, scheduler.place(1.0))
    assert [(q.key, q.position) for q in told][:2] == [(key("r6"), 1), (key("r7"), 2)]
    assert only(Queued, scheduler.place(2.0)) == []


def test_the_expected_wait_follows_the_measured_rate() -> None:
    scheduler = with_worker(granted=1_000_000)
    for i in range(400):
        scheduler.acquire(GATEWAY, acquire(f"r{i}"), i * 0.05)
        scheduler.report(WORKER, report(granted=1_000_000, seen=i, started=[key(f"r{i - 1}")]), i * 0.05)
        scheduler.place(i * 0.05)
    wait_s = scheduler.expected_wait_s("m", 40, 20.0)
    assert wait_s == pytest.approx(2.0, rel=0.1)


def test_an_older_boot_of_the_same_name_is_refused() -> None:
    boots = Boots()
    boots.accept("worker-0", Epoch(5))
    boots.accept("worker-0", Epoch(5))
    with pytest.raises(StaleAttempt):
        boots.accept("worker-0", Epoch(4))
    boots.accept("worker-0", Epoch(6))
    with pytest.raises(StaleAttempt):
        boots.accept("worker-0", Epoch(5))


def test_refusals_tell_the_place_and_the_expected_wait() -> None:
    scheduler = with_worker(max_waiting=3)
    for i in range(40):
        now = i * 0.05
        scheduler.report(WORKER, report(granted=i + 1, seen=i), now)
        scheduler.acquire(GATEWAY, acquire(f"placed{i}"), now)
        assert only(Placed, scheduler.place(now))
    for name in "abc":
        scheduler.acquire(GATEWAY, acquire(name, limits=Limits(queue_s=1.0)), 2.0)
    scheduler.place(2.0)
    (full,) = only(Rejected, scheduler.acquire(GATEWAY, acquire("d"), 2.0))
    expired = only(Rejected, scheduler.place(3.0))
    assert [one.error.detail.metadata["position"] for one in (full, *expired)] == ["4", "1", "2", "3"]
    for one in (full, *expired):
        assert int(one.error.detail.metadata["expected_wait_ms"]) > 0
