"""Slices of a tenant's cap: never more than the cap in force, and pages go to who needs them."""

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmanager.core.slices import GONE_HOLD_S, SETTLE_S, SliceBook
from services.domain.ids import TenantId, WorkerId

T = TenantId("t")
A, B = WorkerId("a"), WorkerId("b")
NONE: frozenset[TenantId] = frozenset()


def limit(book: SliceBook, worker: WorkerId) -> int:
    return book.limits_of(worker)[T]


def two_workers(cap: int = 100) -> SliceBook:
    book = SliceBook({T: cap}, expect_workers=2)
    book.add_worker(A, 1000, 0.0, same_boot=False)
    book.add_worker(B, 1000, 0.0, same_boot=False)
    book.rebalance(SETTLE_S)
    return book


def test_a_worker_alone_gets_the_cap_at_once() -> None:
    book = SliceBook({T: 100})
    book.add_worker(A, 1000, 0.0, same_boot=False)
    assert limit(book, A) == 100


def test_those_that_are_expected_get_equal_shares_at_once() -> None:
    book = SliceBook({T: 100}, expect_workers=3)
    for worker in (A, B, WorkerId("c")):
        book.add_worker(worker, 1000, 0.0, same_boot=False)
    assert [limit(book, worker) for worker in (A, B, WorkerId("c"))] == [34, 33, 33]


def test_an_expected_worker_that_does_not_come_leaves_its_share_to_the_others() -> None:
    book = SliceBook({T: 100}, expect_workers=2)
    book.add_worker(A, 1000, 0.0, same_boot=False)
    assert limit(book, A) == 50
    book.rebalance(SETTLE_S)
    assert limit(book, A) == 100


def test_a_worker_that_asks_gets_what_is_free_at_once() -> None:
    book = SliceBook({T: 100}, expect_workers=2)
    book.add_worker(A, 1000, 0.0, same_boot=False)
    book.report(A, {T: 40}, NONE)
    assert book.rebalance(0.1) == {A}
    assert limit(book, A) == 100


def test_a_slice_is_at_most_the_pool() -> None:
    book = SliceBook({T: 100})
    book.add_worker(A, 30, 0.0, same_boot=False)
    book.rebalance(SETTLE_S)
    assert limit(book, A) == 30


def test_two_workers_share_the_cap() -> None:
    book = two_workers()
    assert (limit(book, A), limit(book, B)) == (50, 50)


def test_pages_move_to_the_one_that_asks_after_the_other_gave_them_up() -> None:
    book = two_workers()
    book.report(A, {T: 40}, frozenset({T}))
    book.report(B, {T: 4}, NONE)
    assert book.rebalance(10.0) == {B}
    assert (limit(book, A), limit(book, B)) == (50, 25)
    assert book.in_force(T) == 100
    assert book.rebalance(10.0 + SETTLE_S / 2) == set()
    book.rebalance(10.0 + SETTLE_S)
    assert (limit(book, A), limit(book, B)) == (75, 25)


def test_pages_still_held_are_not_given_away() -> None:
    book = two_workers()
    book.report(A, {T: 50}, frozenset({T}))
    book.report(B, {T: 4}, NONE)
    book.rebalance(10.0)
    book.report(B, {T: 45}, NONE)  # Taken before it heard of its smaller slice; it is asking now, too.
    book.rebalance(10.0 + SETTLE_S)
    assert (limit(book, A), book.in_force(T)) == (50, 100)
    book.report(B, {T: 10}, NONE)
    book.rebalance(20.0)
    book.rebalance(20.0 + SETTLE_S)
    assert (limit(book, A), limit(book, B)) == (75, 25)


def test_who_is_over_its_smaller_slice_keeps_the_others_small_until_it_drained() -> None:
    book = two_workers()
    book.report(A, {T: 50}, frozenset({T}))
    book.rebalance(10.0)
    book.rebalance(10.0 + SETTLE_S)
    book.report(A, {T: 75}, frozenset({T}))
    book.report(B, {T: 25}, frozenset({T}))
    book.rebalance(20.0)
    book.rebalance(20.0 + SETTLE_S)
    assert (limit(book, A), limit(book, B), book.in_force(T)) == (50, 25, 100)
    book.report(A, {T: 50}, frozenset({T}))
    book.rebalance(25.0 + SETTLE_S)
    assert (limit(book, A), limit(book, B), book.in_force(T)) == (50, 50, 100)


def test_a_worker_that_comes_late_gets_its_share() -> None:
    book = SliceBook({T: 100})
    book.add_worker(A, 1000, 0.0, same_boot=False)
    book.rebalance(SETTLE_S)
    book.add_worker(B, 1000, 10.0, same_boot=False)
    assert limit(book, B) == 0
    book.rebalance(10.5)
    assert limit(book, A) == 50
    book.rebalance(10.5 + SETTLE_S)
    assert limit(book, B) == 50


def test_a_lost_workers_slice_counts_until_it_is_surely_gone() -> None:
    book = two_workers()
    book.lose_worker(B, 20.0)
    book.report(A, {T: 50}, frozenset({T}))
    book.rebalance(21.0)
    assert limit(book, A) == 50
    book.rebalance(20.0 + GONE_HOLD_S)
    assert limit(book, A) == 100


def test_a_new_boot_gives_up_the_old_ones_slices_and_the_same_boot_keeps_them() -> None:
    book = two_workers()
    book.lose_worker(B, 20.0)
    book.add_worker(B, 1000, 21.0, same_boot=True)
    assert limit(book, B) == 50
    book.lose_worker(B, 22.0)
    book.add_worker(B, 1000, 23.0, same_boot=False)
    assert limit(book, B) == 50
    assert book.in_force(T) == 100


class Escrow(RuleBasedStateMachine):
    """Workers obey their last slice, at most `SETTLE_S` late, and hold what they like inside it."""

    CAP = 64

    def __init__(self) -> None:
        super().__init__()
        self.book = SliceBook({T: self.CAP})
        self.now = 0.0
        self.heard: dict[WorkerId, int] = {}
        self.sent: dict[WorkerId, list[tuple[float, int]]] = {}
        """What is on its way to each worker, in order, after what it has heard last."""
        self.used: dict[WorkerId, int] = {}

    @initialize(num_workers=st.integers(1, 5))
    def expect(self, num_workers: int) -> None:
        self.book = SliceBook({T: self.CAP}, expect_workers=num_workers)

    @precondition(lambda self: len(self.heard) < 4)
    @rule(pages=st.integers(1, 80))
    def join(self, pages: int) -> None:
        worker = WorkerId(f"w{len(self.heard)}")
        self.book.add_worker(worker, pages, self.now, same_boot=False)
        self.heard[worker] = limit(self.book, worker)
        self.sent[worker] = []
        self.used[worker] = 0

    @precondition(lambda self: self.heard)
    @rule(data=st.data(), wants=st.booleans())
    def hold(self, data: st.DataObject, wants: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.heard)))
        most = max(self.heard[worker], self.used[worker])
        self.used[worker] = data.draw(st.integers(0, most))
        self.book.report(worker, {T: self.used[worker]}, frozenset({T}) if wants else NONE)

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(w for w, coming in self.sent.items() if coming)))
        _, self.heard[worker] = self.sent[worker].pop(0)

    @rule(passed_s=st.floats(0.1, 3.0))
    def tick(self, passed_s: float) -> None:
        self.now += passed_s
        for worker, coming in self.sent.items():
            while coming and self.now - coming[0][0] >= SETTLE_S:
                _, self.heard[worker] = coming.pop(0)
        for worker in self.book.rebalance(self.now):
            self.sent[worker].append((self.now, limit(self.book, worker)))

    @invariant()
    def the_cap_holds(self) -> None:
        assert self.book.in_force(T) <= self.CAP
        assert sum(max(self.heard[w], self.used[w]) for w in self.heard) <= self.CAP
        assert sum(limit(self.book, worker) for worker in self.heard) <= self.CAP


TestEscrow = Escrow.TestCase
TestEscrow.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(cap=st.integers(1, 50), pools=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_whoever_holds_all_of_its_slice_ends_with_all_that_the_others_do_not_need(
    cap: int, pools: list[int]
) -> None:
    book = SliceBook({T: cap})
    workers = [WorkerId(f"w{i}") for i in range(len(pools))]
    for worker, pool in zip(workers, pools, strict=True):
        book.add_worker(worker, pool, 0.0, same_boot=False)
    for step in range(60):
        book.report(workers[0], {T: limit(book, workers[0])}, frozenset({T}))
        book.rebalance(step * 1.0)
    fair = cap // len(pools)
    floors = sum(min(pool, max(fair // 2, 1)) for pool in pools[1:])
    assert limit(book, workers[0]) >= min(pools[0], cap - floors)
