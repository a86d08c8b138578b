"""Who is placed where and when, one rule at a time."""

from collections import Counter

import pytest

from scheduler.core.outputs import AskMatch, Placed, PlacementsMade, Queued, Rejected
from scheduler.core.request import Match
from scheduler.core.state import SchedulerCore
from services.domain.errors import PromptTooLong
from services.domain.generation import Band
from services.domain.ids import Epoch, WorkerId
from services.domain.miss_reason import MissReason
from tests.unit.scheduler.builders import GATEWAY, acquire, core, hello, key, only, report


def with_worker(granted: int = 100, name: str = "worker-0", **rules: float) -> SchedulerCore:
    scheduler = core(**rules)
    scheduler.worker_connected(hello(name), 0.0)
    scheduler.report(WorkerId(name), report(granted=granted), 0.0)
    return scheduler


def placed(scheduler: SchedulerCore, now: float = 0.0) -> list[str]:
    return [output.acquire.key.request_id for output in only(Placed, scheduler.place(now))]


def test_a_request_is_placed_while_the_worker_has_credit() -> None:
    scheduler = with_worker(granted=2)
    for name in "abc":
        scheduler.acquire(GATEWAY, acquire(name), 0.0)
    outputs = scheduler.place(0.0)
    assert [(p.acquire.key, p.seq) for p in only(Placed, outputs)] == [(key("a"), 1), (key("b"), 2)]
    assert only(PlacementsMade, outputs) == [PlacementsMade(worker=WorkerId("worker-0"), highest_seq=2)]
    assert [(q.key, q.position) for q in only(Queued, outputs)] == [(key("c"), 1)]
    scheduler.report(WorkerId("worker-0"), report(granted=3, seen=2), 0.1)
    assert placed(scheduler, 0.1) == ["c"]


def test_the_token_window_is_one_request_or_one_step() -> None:
    scheduler = with_worker()
    for name, tokens in (("a", 300), ("b", 200), ("c", 100)):
        scheduler.acquire(GATEWAY, acquire(name, tokens=tokens), 0.0)
    assert placed(scheduler) == ["a", "b"]
    scheduler.report(WorkerId("worker-0"), report(granted=100, seen=2, started=[key("a"), key("b")]), 0.1)
    assert placed(scheduler, 0.1) == ["c"]
    scheduler.report(WorkerId("worker-0"), report(granted=100, seen=3, started=[key("c")]), 0.2)
    scheduler.acquire(GATEWAY, acquire("huge", tokens=900), 0.2)
    assert placed(scheduler, 0.2) == ["huge"], "with nothing outstanding one request of any size may go"


def test_pages_placed_but_not_reported_count_as_taken() -> None:
    scheduler = with_worker()
    scheduler.report(WorkerId("worker-0"), report(granted=100, startable=8, running=1), 0.0)
    for name in "ab":
        scheduler.acquire(GATEWAY, acquire(name, tokens=64), 0.0)
    assert placed(scheduler) == ["a"], "5 of 8 pages are given; 3 do not hold another 4 + 1"


def test_bands_are_strict_and_fifo_inside() -> None:
    scheduler = with_worker(granted=0)
    for name, band in (
        ("s1", Band.STANDARD),
        ("b1", Band.BATCH),
        ("i1", Band.INTERACTIVE),
        ("s2", Band.STANDARD),
    ):
        scheduler.acquire(GATEWAY, acquire(name, band=band), 0.0)
    scheduler.report(WorkerId("worker-0"), report(granted=4), 0.1)
    assert placed(scheduler, 0.1) == ["i1", "s1", "s2", "b1"]


@pytest.mark.failure("B049")
def test_a_fully_cached_prompt_is_never_free() -> None:
    scheduler = core()
    names = [f"worker-{i}" for i in range(4)]
    for name in names:
        scheduler.worker_connected(hello(name, pages=4096, max_sequences=256, max_step_tokens=8192), 0.0)
        scheduler.report(WorkerId(name), report(granted=200, startable=4096), 0.0)
    scheduler.set_matching(True)
    everywhere = {(WorkerId(name), Epoch(1)): 64 for name in names}
    where: Counter[str] = Counter()
    for i in range(200):
        scheduler.acquire(GATEWAY, acquire(f"r{i}", tokens=64, blocks=4), 0.0)
        scheduler.place(0.0)
        match = Match(at=0.0, tokens=everywhere, miss_reason=MissReason.NONE, first_miss_token=64)
        scheduler.match_answered(key(f"r{i}"), match)
        (choice,) = only(Placed, scheduler.place(0.0))
        assert choice.cached_tokens == 48, "the last token's block is computed again"
        where[choice.worker] += 1
    assert set(where.values()) == {50}


@pytest.mark.failure("B050")
def test_matches_count_only_for_workers_of_the_model() -> None:
    scheduler = core()
    for name, model in (("worker-0", "m"), ("worker-1", "other")):
        scheduler.worker_connected(hello(name, model=model), 0.0)
        scheduler.report(WorkerId(name), report(granted=9), 0.0)
    scheduler.set_matching(True)
    scheduler.acquire(GATEWAY, acquire("a", tokens=64, blocks=4), 0.0)
    (question,) = only(AskMatch, scheduler.place(0.0))
    assert question.namespace == "ns-m"
    elsewhere = {(WorkerId("worker-1"), Epoch(1)): 64}
    scheduler.match_answered(
        key("a"), Match(at=0.0, tokens=elsewhere, miss_reason=MissReason.NONE, first_miss_token=64)
    )
    (choice,) = only(Placed, scheduler.place(0.0))
    assert (choice.worker, choice.cached_tokens) == ("worker-0", 0)


def two_workers(page_size: int = 16) -> SchedulerCore:
    scheduler = core()
    for name in ("worker-0", "worker-1"):
        scheduler.worker_connected(hello(name, page_size=page_size), 0.0)
        scheduler.report(WorkerId(name), report(granted=9), 0.0)
    scheduler.set_matching(True)
    scheduler.acquire(GATEWAY, acquire("a", tokens=256, blocks=16), 0.0)
    assert len(only(AskMatch, scheduler.place(0.0))) == 1
    return scheduler


def match(**tokens: int) -> Match:
    by_worker = {(WorkerId(name.replace("_", "-")), Epoch(1)): count for name, count in tokens.items()}
    return Match(at=0.0, tokens=by_worker, miss_reason=MissReason.FIRST_DIFFERENCE, first_miss_token=160)


def test_a_cached_prefix_draws_the_request() -> None:
    scheduler = two_workers()
    scheduler.match_answered(key("a"), match(worker_1=160))
    (choice,) = only(Placed, scheduler.place(0.001))
    assert (choice.worker, choice.cached_tokens) == ("worker-1", 160)
    assert (choice.miss_reason, choice.first_miss_token) == (MissReason.FIRST_DIFFERENCE, 160)


@pytest.mark.parametrize(("page_size", "cached"), [(16, 160), (32, 160), (64, 128), (128, 128)])
def test_no_more_is_promised_than_the_workers_whole_pages(page_size: int, cached: int) -> None:
    """160 tokens are known by their blocks; what lies in a page that goes on differently is not reused."""
    scheduler = two_workers(page_size)
    scheduler.match_answered(key("a"), match(worker_0=160))
    (choice,) = only(Placed, scheduler.place(0.001))
    assert (choice.cached_tokens, choice.first_miss_token) == (cached, 160)


def test_load_outweighs_a_cached_prefix_and_the_reason_says_so() -> None:
    scheduler = two_workers()
    busy = report(granted=9, waiting_tokens=400, running=4, startable=40)
    scheduler.report(WorkerId("worker-1"), busy, 0.0)
    scheduler.match_answered(key("a"), match(worker_1=160, worker_0=16))
    (choice,) = only(Placed, scheduler.place(0.001))
    assert (choice.worker, choice.cached_tokens) == ("worker-0", 16)
    assert (choice.miss_reason, choice.first_miss_token) == (MissReason.ON_ANOTHER_WORKER, 16)


def test_a_late_match_is_no_hit_and_holds_nobody_up() -> None:
    scheduler = two_workers()
    assert placed(scheduler, 0.004) == []
    assert scheduler.next_wake() == pytest.approx(0.005)
    (choice,) = only(Placed, scheduler.place(0.005))
    assert (choice.cached_tokens, choice.miss_reason) == (0, MissReason.UNKNOWN)


def test_a_match_older_than_its_freshness_is_asked_again() -> None:
    scheduler = with_worker(granted=1)
    scheduler.set_matching(True)
    scheduler.acquire(GATEWAY, acquire("a", tokens=600, blocks=37), 0.0)
    scheduler.place(0.0)
    scheduler.report(WorkerId("worker-0"), report(granted=1, startable=2, running=1), 0.001)
    scheduler.match_answered(key("a"), match(worker_0=16))
    assert placed(scheduler, 0.001) == [], "too few pages"
    assert only(AskMatch, scheduler.place(0.09)) == []
    assert len(only(AskMatch, scheduler.place(0.2))) == 1


@pytest.mark.parametrize(("opt_out", "reason"), [(True, MissReason.OPT_OUT), (False, MissReason.NONE)])
def test_without_blocks_nobody_is_asked(opt_out: bool, reason: MissReason) -> None:
    scheduler = with_worker()
    scheduler.set_matching(True)
    scheduler.acquire(GATEWAY, acquire("a", tokens=10, cache_opt_out=opt_out), 0.0)
    outputs = scheduler.place(0.0)
    assert only(AskMatch, outputs) == []
    assert only(Placed, outputs)[0].miss_reason == reason


def test_the_batch_window_places_arrivals_together() -> None:
    scheduler = with_worker(batch_wait_s=0.05)
    scheduler.acquire(GATEWAY, acquire("a"), 0.0)
    assert placed(scheduler, 0.0) == []
    scheduler.acquire(GATEWAY, acquire("b"), 0.03)
    assert placed(scheduler, 0.03) == []
    assert scheduler.next_wake() == pytest.approx(0.05)
    assert placed(scheduler, 0.05) == ["a", "b"]
    scheduler.abandon(key("a"), 1)
    scheduler.acquire(GATEWAY, acquire("c"), 0.06)
    scheduler.abandon(key("c"), None)
    scheduler.place(0.2)
    assert scheduler.next_wake() is None, "a window that nobody waits in wakes nobody"


@pytest.mark.failure("B052")
def test_a_big_head_is_passed_a_bounded_number_of_times() -> None:
    scheduler = with_worker(max_bypasses=8)
    name = WorkerId("worker-0")
    scheduler.report(name, report(granted=1000, startable=12, running=3), 0.0)
    scheduler.acquire(GATEWAY, acquire("big", tokens=800), 0.0)
    passed, seen, now = 0, 0, 0.0
    for i in range(40):
        scheduler.acquire(GATEWAY, acquire(f"small{i}", tokens=16), now)
        for _ in placed(scheduler, now):
            passed += 1
            seen += 1
        scheduler.report(name, report(granted=1000, seen=seen, startable=12, running=3), now)
        now += 0.01
    assert passed == 8
    scheduler.report(name, report(granted=1000, seen=seen, startable=12, running=0), now)
    assert placed(scheduler, now)[0] == "big", "an idle worker takes it whatever its pages say"


def test_capacity_is_kept_on_one_worker_only() -> None:
    scheduler = with_worker(max_bypasses=1)
    scheduler.worker_connected(hello("worker-1"), 0.0)
    for name in ("worker-0", "worker-1"):
        scheduler.report(WorkerId(name), report(granted=1000, startable=12, running=3), 0.0)
    scheduler.acquire(GATEWAY, acquire("big", tokens=800), 0.0)
    where = set()
    for i in range(6):
        scheduler.acquire(GATEWAY, acquire(f"small{i}", tokens=16), 0.0)
        where |= {p.worker for p in only(Placed, scheduler.place(0.0)) if i > 0}
    assert len(where) == 1


@pytest.mark.failure("B063")
def test_a_busy_worker_is_usable_again_without_any_message_about_the_lost_one() -> None:
    scheduler = with_worker(granted=64)
    for i in range(30):
        scheduler.acquire(GATEWAY, acquire(f"r{i}", tokens=400), 0.0)
    assert placed(scheduler, 0.0) == ["r0"]
    # r0 is never submitted; the worker counted its placement as lost and says so by its numbers only.
    scheduler.report(WorkerId("worker-0"), report(granted=65, seen=1), 3.0)
    assert placed(scheduler, 3.0) == ["r1"]


def test_equal_workers_take_turns() -> None:
    scheduler = core()
    for i in range(3):
        scheduler.worker_connected(hello(f"worker-{i}"), 0.0)
    where = []
    for i in range(9):
        for w in range(3):
            scheduler.report(WorkerId(f"worker-{w}"), report(granted=i + 1, seen=99), 0.0)
        scheduler.acquire(GATEWAY, acquire(f"r{i}"), 0.0)
        (choice,) = only(Placed, scheduler.place(0.0))
        where.append(choice.worker)
        scheduler.report(choice.worker, report(granted=99, seen=99, started=[key(f"r{i}")]), 0.0)
    assert Counter(where) == {"worker-0": 3, "worker-1": 3, "worker-2": 3}


@pytest.mark.failure("B142")
def test_a_worker_that_joins_under_load_gets_its_share() -> None:
    scheduler = with_worker(granted=10)
    for i in range(100):
        scheduler.acquire(GATEWAY, acquire(f"r{i}"), 0.0)
    scheduler.place(0.0)
    for w in (1, 2, 3):
        scheduler.worker_connected(hello(f"worker-{w}"), 1.0)
    where: Counter[str] = Counter()
    for _ in range(20):
        for w in range(4):
            name = WorkerId(f"worker-{w}")
            made = scheduler.fleet.workers[name]
            ready = report(granted=made.placed + 1, seen=made.placed, started=list(made.outstanding))
            scheduler.report(name, ready, 1.0)
        where.update(p.worker for p in only(Placed, scheduler.place(1.0)))
    assert max(where.values()) - min(where.values()) <= 2


def test_draining_and_avoided_workers_get_nothing() -> None:
    scheduler = with_worker(name="worker-0")
    scheduler.worker_connected(hello("worker-1"), 0.0)
    scheduler.report(WorkerId("worker-1"), report(granted=9), 0.0)
    scheduler.acquire(GATEWAY, acquire("a", avoid=["worker-0"]), 0.0)
    assert [p.worker for p in only(Placed, scheduler.place(0.0))] == ["worker-1"]
    scheduler.drain(WorkerId("worker-1"), 0.0)
    scheduler.acquire(GATEWAY, acquire("b", avoid=["worker-0"]), 0.0)
    assert placed(scheduler, 0.0) == []
    scheduler.worker_connected(hello("worker-0", epoch=2), 1.0)
    scheduler.report(WorkerId("worker-0"), report(granted=1), 1.0)
    assert placed(scheduler, 1.0) == ["b"], "a new boot has not failed this request"


@pytest.mark.failure("B051")
def test_what_cannot_ever_fit_is_refused_with_numbers() -> None:
    scheduler = with_worker()
    outputs = scheduler.acquire(GATEWAY, acquire("a", tokens=1000, output=26), 0.0)
    (refused,) = only(Rejected, outputs)
    assert isinstance(refused.error, PromptTooLong)
    assert refused.error.detail.metadata == {"what": "KV pages", "need": "65", "limit": "64"}
    assert only(Rejected, scheduler.acquire(GATEWAY, acquire("b", tokens=1000, output=25), 0.0)) == []
