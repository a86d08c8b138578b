"""The manager in virtual time: workers that come, go, lose messages and wake up."""

import pytest

from kvmanager.core.eviction_policy import EvictionPolicy
from kvmanager.core.index_copy import CopiedWorker
from kvmanager.core.prefix_index import WorkerKey
from kvmanager.core.slices import GONE_HOLD_S, JOIN_S
from kvmanager.known_worker import DROP_AFTER_S
from kvmanager.manager import COPY_GRACE_S
from services.domain.block_hash import hash_blocks
from services.domain.errors import StaleAttempt
from services.domain.ids import Epoch, Namespace
from services.domain.miss_reason import MissReason
from services.domain.slices import SliceInForce, SlicesInForce
from tests.fakes.index_copy_memory import MemoryIndexCopy
from tests.fakes.kv_fleet import TICK_S, W0, W1, Fleet, T

BLOCKS = hash_blocks(range(16 * 200), salt=b"t")
A, B, C = BLOCKS[:3]


def test_events_and_snapshots_make_hits() -> None:
    fleet = Fleet()
    link = fleet.connect()
    fleet.snapshot(link, A, seq=4)
    fleet.change(link, 5, stored=[B], removed=[])
    answer = fleet.ask(A, B, C)
    assert [(m.worker, m.epoch, m.num_blocks) for m in answer.matches] == [(W0, 1, 2)]
    assert (answer.num_cached, answer.miss_reason) == (2, MissReason.NEVER_SEEN)
    assert (fleet.manager.lookup.num_queries, fleet.manager.lookup.num_hits) == (1, 1)


def test_removed_happens_before_stored_in_one_message() -> None:
    fleet = Fleet()
    link = fleet.connect()
    fleet.snapshot(link, A, B)
    fleet.change(link, 1, removed=[A, B], stored=[A])
    answer = fleet.ask(A, B)
    assert (answer.num_cached, answer.miss_reason) == (1, MissReason.EVICTED_FOR_SPACE)


def test_a_gap_asks_for_a_snapshot_and_goes_on_serving() -> None:
    fleet = Fleet()
    link = fleet.connect()
    fleet.snapshot(link, A)
    fleet.change(link, 2, stored=[B])
    assert link.num_asked == 1
    assert fleet.ask(A, B).num_cached == 2
    assert fleet.metric("quire_prefix_index_gaps_total") == 1
    fleet.pass_time(3.0, (W0, link))
    assert fleet.metric("quire_prefix_index_staleness_seconds", worker=W0) == pytest.approx(3.0)
    fleet.snapshot(link, A, seq=2)
    fleet.pass_time(0.5, (W0, link))
    assert fleet.metric("quire_prefix_index_staleness_seconds", worker=W0) == 0
    assert fleet.metric("quire_prefix_index_blocks", worker=W0) == 1


@pytest.mark.failure("B155")
def test_one_unreadable_message_stops_nothing() -> None:
    fleet = Fleet()
    link = fleet.connect()
    fleet.snapshot(link, A)
    fleet.manager.on_unreadable(W0, link, fleet.now)
    assert link.num_asked == 1
    fleet.change(link, 2, stored=[B])
    assert fleet.ask(A, B).num_cached == 2


def test_a_dead_worker_is_dropped_within_4_s_and_that_is_why_its_blocks_miss() -> None:
    fleet = Fleet()
    link = fleet.connect()
    fleet.snapshot(link, A)
    fleet.manager.disconnect(W0, link, fleet.now)
    fleet.pass_time(DROP_AFTER_S)
    assert fleet.ask(A).num_cached == 1
    fleet.pass_time(TICK_S)
    answer = fleet.ask(A)
    assert (answer.num_cached, answer.miss_reason) == (0, MissReason.WORKER_GONE)
    assert fleet.manager.status(fleet.now) == []


def test_a_reconnect_of_the_same_boot_goes_on_by_number() -> None:
    fleet = Fleet()
    old = fleet.connect()
    fleet.snapshot(old, A, seq=7)
    fleet.manager.disconnect(W0, old, fleet.now)
    fleet.pass_time(1.0)
    new = fleet.connect()
    fleet.change(new, 7, stored=[C])
    fleet.change(new, 8, stored=[B])
    assert fleet.manager.index.blocks_of(W0) == {A, B}
    assert new.num_asked == 0


def test_a_second_stream_takes_over_and_the_first_has_no_say_any_more() -> None:
    fleet = Fleet()
    old, new = fleet.connect(), fleet.connect()
    assert old.closed
    fleet.snapshot(new, A)
    fleet.snapshot(old, B)
    fleet.manager.disconnect(W0, old, fleet.now)
    fleet.pass_time(5.0, (W0, new))
    assert fleet.manager.index.blocks_of(W0) == {A}


def test_a_new_boot_begins_empty_and_an_old_one_is_refused() -> None:
    fleet = Fleet()
    fleet.snapshot(fleet.connect(epoch=5), A)
    fleet.connect(epoch=6)
    assert fleet.ask(A).miss_reason is MissReason.WORKER_GONE
    with pytest.raises(StaleAttempt):
        fleet.connect(epoch=5)


def test_an_old_boot_is_refused_after_the_newer_one_was_dropped() -> None:
    fleet = Fleet()
    link = fleet.connect(epoch=6)
    fleet.manager.disconnect(W0, link, fleet.now)
    fleet.pass_time(5.0)
    with pytest.raises(StaleAttempt):
        fleet.connect(epoch=5)


def test_a_worker_that_never_sends_its_snapshot_is_asked_again() -> None:
    fleet = Fleet()
    link = fleet.connect()
    fleet.pass_time(3.0, (W0, link))
    assert 2 <= link.num_asked <= 3


def test_the_copy_serves_until_the_snapshot_comes() -> None:
    fleet = Fleet()
    key = WorkerKey(W0, Epoch(5), Namespace("n"))
    fleet.manager.restore([CopiedWorker(key, {A, B})], fleet.now)
    assert fleet.ask(A, B).num_cached == 2
    link = fleet.connect(epoch=5)
    fleet.change(link, 31, stored=[C])
    assert fleet.ask(A, B, C).num_cached == 3
    assert fleet.manager.status(fleet.now)[0].from_copy
    fleet.snapshot(link, A, seq=40)
    assert fleet.ask(A, B, C).num_cached == 1
    assert not fleet.manager.status(fleet.now)[0].from_copy


def test_a_copied_worker_that_says_nothing_is_dropped() -> None:
    fleet = Fleet()
    key = WorkerKey(W0, Epoch(5), Namespace("n"))
    fleet.manager.restore([CopiedWorker(key, {A})], fleet.now)
    fleet.pass_time(COPY_GRACE_S)
    assert fleet.ask(A).num_cached == 1
    fleet.pass_time(TICK_S)
    assert fleet.ask(A).miss_reason is MissReason.WORKER_GONE


def test_a_copy_of_another_boot_is_not_used() -> None:
    fleet = Fleet()
    key = WorkerKey(W0, Epoch(5), Namespace("n"))
    fleet.manager.restore([CopiedWorker(key, {A})], fleet.now)
    fleet.connect(epoch=6)
    assert fleet.ask(A).num_cached == 0


def test_a_block_behind_a_hole_is_on_another_worker() -> None:
    fleet = Fleet()
    fleet.snapshot(fleet.connect(W0), A)
    fleet.snapshot(fleet.connect(W1), B, worker=W1)
    assert fleet.ask(A, B).miss_reason is MissReason.ON_ANOTHER_WORKER


def test_slices_and_policy_are_pushed_and_follow_what_is_held() -> None:
    fleet = Fleet(caps={T: 100})
    a, b = fleet.connect(W0), fleet.connect(W1)
    assert a.policies == b.policies == [EvictionPolicy()]
    assert (a.slices[-1], b.slices[-1]) == ({T: 50}, {T: 50})
    fleet.applied(a, W0)
    fleet.applied(b, W1)
    fleet.pass_time(5.0, (W0, a), (W1, b))
    assert (a.slices[-1], b.slices[-1]) == ({T: 50}, {T: 50})
    fleet.snapshot(a, A)
    fleet.change(a, 1, tenant_pages={T: 45})
    fleet.pass_time(6.0, (W0, a), (W1, b))
    assert (a.slices[-1], b.slices[-1]) == ({T: 50}, {T: 25})
    fleet.applied(b, W1)
    assert a.slices[-1] == {T: 75}
    assert fleet.manager.status(fleet.now)[0].tenant_pages == {T: 45}
    fleet.change(a, 2, tenant_pages={T: 0})
    assert fleet.manager.status(fleet.now)[0].tenant_pages == {}


def test_without_caps_a_worker_is_told_once_that_there_are_no_slices() -> None:
    fleet = Fleet()
    link = fleet.connect()
    fleet.pass_time(5.0, (W0, link))
    assert link.slices == [{}]


def test_a_request_that_needs_more_than_its_slice_gets_it_as_soon_as_the_other_worker_gave_way() -> None:
    fleet = Fleet(caps={T: 100})
    a, b = fleet.connect(W0), fleet.connect(W1)
    fleet.applied(a, W0, needs=80)
    assert b.slices[-1] == {T: 20}
    fleet.applied(b, W1, bound=30, held=30)
    assert a.slices[-1] == {T: 70}
    fleet.applied(a, W0, needs=80)
    fleet.applied(b, W1)
    assert a.slices[-1] == {T: 80}


def test_after_a_restart_workers_of_the_copy_keep_what_they_have_and_others_wait_for_them() -> None:
    fleet = Fleet(caps={T: 100})
    keys = [WorkerKey(worker, Epoch(1), Namespace("n")) for worker in (W0, W1)]
    fleet.manager.restore([CopiedWorker(key, {A}) for key in keys], fleet.now)
    had = SlicesInForce(version=1, tenants={T: SliceInForce(max_pages=90, bound=90, held=3)})
    fresh = fleet.connect(W1, epoch=2)
    assert fresh.slices[-1] == {T: 0}
    old = fleet.connect(W0, said=had)
    assert old.slices[-1] == {T: 50}
    fleet.pass_time(JOIN_S, (W0, old), (W1, fresh))
    assert fresh.slices[-1] == {T: 10}
    fleet.applied(old, W0)
    assert fresh.slices[-1] == {T: 50}


def test_without_a_copy_nothing_is_given_out_for_a_time() -> None:
    fleet = Fleet(caps={T: 100})
    fleet.manager.history_unknown(fleet.now)
    link = fleet.connect()
    fleet.pass_time(GONE_HOLD_S - TICK_S, (W0, link))
    assert link.slices[-1] == {T: 0}
    fleet.pass_time(TICK_S, (W0, link))
    assert link.slices[-1] == {T: 100}


async def test_a_silent_worker_stays_in_the_copy_as_long_as_its_slices_count() -> None:
    copy = MemoryIndexCopy()
    fleet = Fleet(caps={T: 100}, copy=copy)
    link = fleet.connect()
    assert fleet.manager.writer is not None
    await fleet.manager.writer.flush()
    fleet.manager.disconnect(W0, link, fleet.now)
    for passed_s, num_known in ((GONE_HOLD_S, 1), (DROP_AFTER_S + 2 * TICK_S, 0)):
        fleet.pass_time(passed_s)
        await fleet.manager.writer.flush()
        assert len(await copy.load()) == num_known


def test_a_policy_is_confirmed_by_its_worker() -> None:
    fleet = Fleet()
    link = fleet.connect()
    fleet.manager.on_policy(W0, link, 3, "eviction order 9 is not known", fleet.now)
    assert fleet.manager.status(fleet.now)[0].policy_version == 0
    fleet.manager.on_policy(W0, link, 3, "", fleet.now)
    assert fleet.manager.status(fleet.now)[0].policy_version == 3
