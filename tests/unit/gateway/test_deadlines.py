"""Limits end a request in the phase that they are about, and signs of life are due until the first token."""

import pytest

from gateway.core.deadlines import HEARTBEAT_S, Deadlines
from services.domain.generation import Limits


def limit_of(deadlines: Deadlines, now: float) -> str | None:
    expired = deadlines.expired(now)
    return None if expired is None else expired.detail.metadata["limit"]


def test_each_limit_holds_only_in_its_phase() -> None:
    deadlines = Deadlines(Limits(queue_s=1, first_token_s=2, total_s=3), arrived=10.0)
    assert [limit_of(deadlines, now) for now in (10.9, 11.0, 13.0)] == [None, "queue", "total"]
    deadlines.has_place = True
    assert [limit_of(deadlines, now) for now in (11.9, 12.0)] == [None, "first token"]
    deadlines.has_first_token = True
    assert [limit_of(deadlines, now) for now in (12.9, 13.0)] == [None, "total"]


@pytest.mark.failure("B082")
def test_signs_of_life_are_due_until_the_first_token() -> None:
    deadlines = Deadlines(Limits(), arrived=0.0)
    assert deadlines.next_due() == HEARTBEAT_S <= 10
    assert [deadlines.beat(HEARTBEAT_S - 0.1), deadlines.beat(HEARTBEAT_S)] == [False, True]
    assert deadlines.next_due() == 2 * HEARTBEAT_S
    deadlines.has_first_token = True
    assert not deadlines.beat(100.0)
    assert deadlines.next_due() is None


def test_a_worker_is_told_what_is_left() -> None:
    deadlines = Deadlines(Limits(queue_s=1, first_token_s=2, total_s=3), arrived=10.0)
    assert deadlines.left(10.5) == Limits(first_token_s=1.5, total_s=2.5)
    assert deadlines.left(99.0) == Limits(first_token_s=0.001, total_s=0.001)
