"""The buffer behind a stream that goes on after a break."""

from hypothesis import given
from hypothesis import strategies as st

from worker.resend_buffer import ResendBuffer


def filled(count: int, confirmed: int = 0) -> ResendBuffer[int]:
    buffer: ResendBuffer[int] = ResendBuffer(100)
    for number in range(1, count + 1):
        assert buffer.append(number) == number
    buffer.confirm(confirmed)
    return buffer


def test_positions_go_on_after_everything_was_confirmed() -> None:
    buffer = filled(5, confirmed=5)
    assert buffer.after(5) == []
    assert buffer.append(6) == 6
    assert buffer.after(5) == [6]


def test_only_kept_positions_can_be_resumed() -> None:
    buffer = filled(5, confirmed=2)
    assert [position for position in range(8) if buffer.can_resume_after(position)] == [2, 3, 4, 5]


def test_old_and_impossible_confirmations_change_nothing() -> None:
    buffer = filled(5, confirmed=3)
    buffer.confirm(1)
    buffer.confirm(99)
    assert buffer.after(3) == [4, 5]


def test_it_is_full_at_its_bound() -> None:
    buffer: ResendBuffer[int] = ResendBuffer(2)
    buffer.append(1)
    assert not buffer.is_full
    buffer.append(2)
    assert buffer.is_full


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_what_follows_a_position_is_complete_and_in_order(count: int, confirmed: int, position: int) -> None:
    buffer = filled(count, confirmed)
    if buffer.can_resume_after(position):
        assert buffer.after(position) == list(range(position + 1, count + 1))
