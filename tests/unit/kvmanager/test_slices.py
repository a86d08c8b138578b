"""Slices of a tenant's cap: pages go to who needs them, and back only when their worker says so."""

from kvmanager.core.slices import GONE_HOLD_S, JOIN_S
from services.domain.ids import TenantId
from tests.unit.kvmanager.slice_fleet import A, B, C, Fleet, T, two


def test_a_worker_alone_gets_the_cap_at_once() -> None:
    fleet = Fleet()
    fleet.join(A)
    assert fleet.limit(A) == 100


def test_those_that_are_expected_get_equal_shares_at_once() -> None:
    fleet = Fleet(expect_workers=3)
    fleet.join(A, B, C)
    assert [fleet.limit(worker) for worker in (A, B, C)] == [34, 33, 33]


def test_an_expected_worker_that_does_not_come_leaves_its_share_to_the_others() -> None:
    fleet = Fleet(expect_workers=2)
    fleet.join(A)
    assert fleet.limit(A) == 50
    fleet.rebalance(JOIN_S)
    assert fleet.limit(A) == 100


def test_a_worker_that_uses_80_percent_gets_what_is_free_at_once() -> None:
    fleet = Fleet(expect_workers=2)
    fleet.join(A)
    fleet.book.report(A, {T: 40})
    assert fleet.rebalance(0.1) == {A}
    assert fleet.limit(A) == 100


def test_a_slice_is_at_most_the_pool() -> None:
    fleet = Fleet()
    fleet.join(A, pages=30)
    fleet.rebalance(JOIN_S)
    assert fleet.limit(A) == 30


def test_pages_move_to_the_one_that_uses_them_once_the_other_gave_them_up() -> None:
    fleet = two()
    assert fleet.limits == [50, 50]
    fleet.hold(A, 40)
    fleet.hold(B, 4)
    fleet.silent = {B}
    assert fleet.rebalance() == {B}
    assert (fleet.limits, fleet.book.in_force(T)) == ([50, 25], 100)
    assert fleet.rebalance(1000.0) == set()
    fleet.say(B, version=fleet.book.push(B)[0], limit=25)
    assert fleet.rebalance() == {A}
    assert (fleet.limits, fleet.book.in_force(T)) == ([75, 25], 100)


def test_a_request_that_needs_more_than_its_share_gets_it() -> None:
    fleet = two()
    fleet.hold(B, 4)
    fleet.need(A, 60)
    fleet.rebalance()
    assert fleet.limits[0] >= 60
    assert sum(fleet.limits) <= 100


def test_a_request_that_needs_the_whole_cap_gets_it_where_nothing_runs() -> None:
    fleet = two()
    fleet.need(A, 100)
    fleet.rebalance()
    assert fleet.limits == [100, 0]


def test_what_running_sequences_may_still_take_is_given_away_only_when_they_have_ended() -> None:
    fleet = two()
    fleet.hold(B, 45)
    fleet.need(A, 60)
    fleet.rebalance()
    assert (fleet.limits, fleet.book.in_force(T)) == ([55, 40], 100)
    fleet.hold(B, 43)
    fleet.rebalance()
    assert fleet.limits == [57, 40]
    fleet.hold(B, 10)
    fleet.rebalance()
    assert fleet.limits == [60, 40]


def test_of_two_requests_that_exclude_each_other_the_older_goes_first_and_then_the_other() -> None:
    fleet = two()
    fleet.need(B, 70)
    fleet.now += 1.0
    fleet.need(A, 60)
    fleet.rebalance()
    assert fleet.limits == [30, 70]
    fleet.needs.pop(B)
    fleet.hold(B, 70)
    fleet.rebalance(1.0)
    assert fleet.limits[0] == 30
    fleet.hold(B, 0)
    fleet.rebalance(1.0)
    assert fleet.limits[0] == 60


def test_an_older_need_keeps_its_pages_while_a_younger_one_waits() -> None:
    """Between the push and the start nothing that comes in takes them back."""
    fleet = two()
    fleet.need(A, 60)
    fleet.rebalance()
    fleet.need(B, 90)
    fleet.rebalance()
    assert fleet.limits == [60, 40]


def test_shares_are_fair_again_once_nobody_needs_more() -> None:
    fleet = two()
    fleet.need(A, 100)
    fleet.rebalance()
    fleet.needs.pop(A)
    fleet.say(A)
    fleet.rebalance(JOIN_S)
    assert fleet.limits == [50, 50]


def test_a_worker_that_comes_late_gets_its_share_once_the_first_has_given_it_up() -> None:
    fleet = Fleet()
    fleet.join(A)
    fleet.rebalance(JOIN_S)
    fleet.silent = {A}
    fleet.join(B)
    fleet.rebalance(JOIN_S)
    assert fleet.limits == [50, 0]
    fleet.say(A, version=fleet.book.push(A)[0], limit=50)
    fleet.rebalance()
    assert fleet.limits == [50, 50]


def test_a_lost_workers_slice_counts_until_it_is_surely_gone() -> None:
    fleet = two()
    fleet.book.lose_worker(B, fleet.now)
    fleet.hold(A, 50)
    fleet.rebalance(GONE_HOLD_S - 1)
    assert fleet.limit(A) == 50
    fleet.rebalance(1.0)
    assert fleet.limit(A) == 100


def test_a_new_boot_frees_what_the_old_one_had() -> None:
    fleet = two()
    fleet.hold(B, 50)
    fleet.book.lose_worker(B, fleet.now)
    fleet.need(A, 100)
    fleet.rebalance()
    assert fleet.limits[0] == 50
    fleet.bounds.pop(B)
    fleet.join(B)
    fleet.rebalance()
    assert fleet.limits == [100, 0]


def test_the_same_boot_keeps_what_it_says_that_it_has() -> None:
    fleet = two()
    fleet.silent = {B}
    fleet.need(A, 80)
    fleet.rebalance()
    fleet.book.lose_worker(B, fleet.now)
    fleet.join(B, said=fleet.said[B])
    fleet.rebalance()
    assert (fleet.limits, fleet.book.in_force(T)) == ([50, 20], 100)
    fleet.say(B, version=fleet.book.push(B)[0], limit=20)
    fleet.rebalance()
    assert fleet.limits == [80, 20]


def test_after_a_restart_nothing_is_given_out_until_all_who_were_there_have_spoken() -> None:
    before = two()
    fleet = Fleet(expect_workers=2)
    fleet.now = 1000.0
    for worker in (A, B):
        fleet.book.expect_back(worker, fleet.now)
    fleet.join(C)
    fleet.join(A, said=before.said[A])
    fleet.rebalance(JOIN_S)
    assert (fleet.limit(A), fleet.limit(C)) == (50, 0)
    fleet.join(B, said=before.said[B])
    fleet.rebalance(JOIN_S)
    assert [fleet.limit(worker) for worker in (A, B, C)] == [33, 33, 33]


def test_one_that_does_not_come_back_after_a_restart_holds_pages_back_for_a_time_only() -> None:
    fleet = Fleet()
    fleet.book.expect_back(None, fleet.now)
    fleet.join(A)
    fleet.rebalance(GONE_HOLD_S - 1)
    assert fleet.limit(A) == 0
    fleet.rebalance(1.0)
    assert fleet.limit(A) == 100


OTHER = TenantId("other")


def test_a_lowered_cap_is_cut_at_once_and_given_out_only_when_it_was_given_up() -> None:
    fleet = two(cap=100)
    fleet.hold(A, 50)
    fleet.silent = {A, B}
    fleet.book.change_caps({T: 20})
    assert sum(fleet.limits) <= 20
    assert fleet.book.in_force(T) == 100  # Neither has said yet that it keeps to less.
    fleet.silent = set()
    for worker in (A, B):
        fleet.push(worker)
    assert fleet.book.in_force(T) == 50 + fleet.limits[1]  # What runs on A runs to its end.
    fleet.hold(A, 0)
    fleet.rebalance(1.0)
    assert fleet.book.in_force(T) <= 20
    assert sum(fleet.limits) == 20


def test_a_raised_cap_grows_the_slices() -> None:
    fleet = two(cap=20)
    fleet.book.change_caps({T: 100})
    fleet.rebalance(1.0)
    assert sum(fleet.limits) == 100


def test_a_tenant_that_gets_a_cap_later_is_cut_to_shares_of_it_and_back() -> None:
    fleet = two(cap=40)
    fleet.book.change_caps({T: 40, OTHER: 30})
    assert [fleet.book.push(worker)[1] for worker in (A, B)] == [{T: 20, OTHER: 15}, {T: 20, OTHER: 15}]
    assert fleet.book.in_force(OTHER) == 30
    fleet.book.change_caps({OTHER: 30})
    assert [fleet.book.push(worker)[1] for worker in (A, B)] == [{OTHER: 15}, {OTHER: 15}]
