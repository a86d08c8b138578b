"""The book of placements: every number is accounted for once, and no credit is lost or doubled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.errors import StaleAttempt
from services.domain.ids import RequestId, RequestKey
from worker.placements import MAX_AHEAD, PlacementBook


def key(number: int, attempt: int = 1) -> RequestKey:
    return RequestKey(RequestId(f"r{number}"), attempt)


def book(term: int = 3) -> PlacementBook:
    made = PlacementBook(1.0)
    made.begin_link()
    assert made.obey(term)
    return made


def test_a_submitted_placement_is_seen_once_a_step_has_taken_it() -> None:
    placements = book()
    placements.placed(1, (), now=0.0)
    placements.check_submit(key(1), 3, 1)
    placements.submitted(key(1), 3, 1, now=0.1)
    assert placements.seen == 0
    assert placements.expire(now=9.0) == 0
    placements.entered(key(1))
    assert (placements.seen, placements.lost) == (1, 0)


def test_a_submit_may_come_before_the_word_of_its_placement() -> None:
    placements = book()
    placements.check_submit(key(2), 3, 2)
    placements.submitted(key(2), 3, 2, now=0.0)
    placements.placed(2, (), now=0.1)
    placements.entered(key(2))
    assert placements.seen == 0
    assert placements.expire(now=1.0) == 1
    assert (placements.seen, placements.lost) == (2, 1)


def test_late_given_back_and_used_placements_are_refused() -> None:
    placements = book()
    placements.placed(3, (2,), now=0.0)
    placements.submitted(key(1), 3, 1, now=0.1)
    placements.entered(key(1))
    placements.expire(now=2.0)
    assert (placements.seen, placements.lost) == (3, 2)
    for number in (1, 2, 3):
        with pytest.raises(StaleAttempt):
            placements.check_submit(key(number), 3, number)
    with pytest.raises(StaleAttempt):
        placements.check_submit(key(9), 3, MAX_AHEAD * 2)


def test_a_number_that_another_request_used_is_of_an_earlier_link() -> None:
    placements = book()
    placements.submitted(key(1), 3, 1, now=0.0)
    placements.check_submit(key(2), 3, 1)
    placements.submitted(key(2), 3, 1, now=0.0)
    placements.entered(key(1))
    placements.entered(key(2))
    assert (placements.seen, placements.highest) == (1, 1)


def test_a_lower_term_is_refused_and_a_higher_one_counts_anew() -> None:
    placements = book(term=3)
    placements.placed(4, (), now=0.0)
    with pytest.raises(StaleAttempt):
        placements.check_submit(key(1), 2, 1)
    assert not placements.obey(2)
    placements.submitted(key(1), 4, 1, now=0.0)
    assert (placements.term, placements.highest) == (4, 1)


def test_without_a_scheduler_anybody_may_submit() -> None:
    placements = PlacementBook(1.0)
    placements.check_submit(key(1), 0, 0)
    placements.submitted(key(1), 0, 0, now=0.0)
    placements.entered(key(1))
    assert (placements.seen, placements.lost) == (0, 0)


def test_what_is_inside_at_a_new_link_counts_for_none_of_its_numbers() -> None:
    placements = book()
    placements.submitted(key(1), 3, 1, now=0.0)
    placements.begin_link()
    assert placements.num_inside == 1
    placements.placed(1, (), now=0.0)
    placements.entered(key(1))
    assert placements.seen == 0


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("placed"), st.integers(0, 12)),
        st.tuples(st.just("abandoned"), st.integers(1, 12)),
        st.tuples(st.just("submit"), st.integers(1, 12)),
        st.tuples(st.just("unused"), st.integers(1, 12)),
        st.tuples(st.just("enter"), st.integers(1, 12)),
        st.tuples(st.just("wait"), st.integers(0, 2)),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_every_placement_ends_as_taken_or_lost_exactly_once(operations: list[tuple[str, int]]) -> None:
    placements, now, taken = book(), 0.0, set()
    for what, number in operations:
        if what == "placed":
            placements.placed(number, (), now)
        elif what == "abandoned":
            placements.placed(number, (number,), now)
        elif what == "unused":
            placements.unused(3, number, now)
        elif what == "enter":
            placements.entered(key(number))
        elif what == "wait":
            now += number
            placements.expire(now)
        else:
            try:
                placements.check_submit(key(number), 3, number)
            except StaleAttempt:
                continue
            placements.submitted(key(number), 3, number, now)
            taken.add(number)
    placements.expire(now + 10)
    for number in taken:
        placements.entered(key(number))
    assert placements.seen == placements.highest
    assert placements.lost + len(taken) == placements.highest
