"""Numbered changes with everything that can happen to them on the way."""

import pytest

from kvmanager.core.worker_feed import SNAPSHOT_ASK_PERIOD_S, Step, WorkerFeed
from services.domain.ids import BlockHash

A, B, C = (BlockHash(bytes([i]) * 16) for i in range(3))


def in_sync_at(seq: int) -> WorkerFeed:
    feed = WorkerFeed()
    assert feed.offer_snapshot(seq, [A], first=True, more=False) == {A}
    return feed


def test_numbers_in_order_are_applied() -> None:
    feed = in_sync_at(4)
    assert [feed.offer_events(5), feed.offer_events(6)] == [Step.APPLY, Step.APPLY]
    assert feed.in_sync


def test_numbers_seen_before_are_ignored() -> None:
    feed = in_sync_at(4)
    feed.offer_events(5)
    assert [feed.offer_events(5), feed.offer_events(3)] == [Step.IGNORE, Step.IGNORE]
    assert feed.in_sync


def test_a_missing_number_is_a_gap_told_once() -> None:
    feed = in_sync_at(4)
    assert [feed.offer_events(6), feed.offer_events(8)] == [Step.GAP, Step.APPLY]
    assert not feed.in_sync


def test_a_snapshot_is_asked_for_once_per_period_until_it_comes() -> None:
    feed = in_sync_at(4)
    assert not feed.should_ask(0.0)
    feed.offer_events(6)
    assert feed.should_ask(1.0)
    assert not feed.should_ask(1.0 + SNAPSHOT_ASK_PERIOD_S / 2)
    assert feed.should_ask(1.0 + SNAPSHOT_ASK_PERIOD_S)
    feed.offer_snapshot(6, [], first=True, more=False)
    assert not feed.should_ask(9.0)


def test_a_new_stream_leaves_the_worker_a_moment_to_speak_up() -> None:
    feed = WorkerFeed()
    feed.reconnected(5.0)
    assert not feed.should_ask(5.1)
    assert feed.should_ask(5.0 + SNAPSHOT_ASK_PERIOD_S)


def test_parts_make_one_snapshot() -> None:
    feed = WorkerFeed()
    assert feed.offer_snapshot(7, [A], first=True, more=True) is None
    assert feed.offer_snapshot(7, [B], first=False, more=True) is None
    assert feed.offer_snapshot(7, [C], first=False, more=False) == {A, B, C}
    assert feed.offer_events(8) is Step.APPLY
    assert feed.in_sync


@pytest.mark.parametrize("cut_by", ["another snapshot", "a new stream", "a foreign part"])
def test_half_a_snapshot_is_never_taken_for_a_whole_one(cut_by: str) -> None:
    feed = WorkerFeed()
    feed.offer_snapshot(7, [A], first=True, more=True)
    if cut_by == "another snapshot":
        assert feed.offer_snapshot(9, [B], first=True, more=False) == {B}
        return
    if cut_by == "a new stream":
        feed.reconnected(0.0)
    else:
        assert feed.offer_snapshot(8, [B], first=False, more=True) is None
    assert feed.offer_snapshot(7, [C], first=False, more=False) is None
    assert not feed.in_sync


def test_an_older_snapshot_does_not_undo_what_is_known() -> None:
    feed = in_sync_at(9)
    assert feed.offer_snapshot(4, [B], first=True, more=False) is None
    assert feed.offer_events(10) is Step.APPLY
    assert feed.in_sync


def test_what_cannot_be_read_counts_as_lost() -> None:
    feed = in_sync_at(1)
    feed.lost()
    assert feed.should_ask(0.0)
