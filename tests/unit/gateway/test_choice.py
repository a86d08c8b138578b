"""A choice gives each token once and exactly one end."""

import pytest

from gateway.core.choice import Choice, Gap
from gateway.core.detokenizer import Detokenizer
from gateway.core.events import Delta, Event, Finished
from services.domain.generation import FinishReason


def a_choice(*stops: str, keep_records: bool = False) -> Choice:
    text = Detokenizer(lambda token_id: bytes([token_id]), stops=stops, keep_records=keep_records)
    return Choice(0, text)


def arrive(choice: Choice, position: int, text: bytes) -> int:
    return choice.arrive(position, list(text), None, None)


def take(choice: Choice) -> tuple[list[Event], list[int]]:
    stopped: list[int] = []
    return list(choice.take(lambda index, reason: stopped.append(index))), stopped


def test_tokens_between_two_takes_are_one_delta() -> None:
    choice = a_choice()
    arrive(choice, 0, b"ab")
    arrive(choice, 2, b"c")
    assert take(choice) == ([Delta(0, "abc", ())], [])
    assert take(choice) == ([], [])


def test_positions_seen_before_are_dropped_and_missing_ones_are_an_error() -> None:
    choice = a_choice()
    assert arrive(choice, 0, b"abc") == 3
    assert arrive(choice, 1, b"bcd") == 1
    assert take(choice)[0] == [Delta(0, "abcd", ())]
    with pytest.raises(Gap):
        arrive(choice, 5, b"x")


@pytest.mark.failure("B075")
def test_the_end_comes_once_after_all_text() -> None:
    choice = a_choice("never")
    arrive(choice, 0, b"to ne")
    choice.end(FinishReason.LENGTH)
    events, stopped = take(choice)
    assert events == [Delta(0, "to ne", ()), Finished(0, FinishReason.LENGTH, None, 5)]
    assert stopped == []
    choice.end(FinishReason.STOP)
    assert take(choice) == ([], [])


@pytest.mark.failure("B070")
def test_a_stop_string_ends_the_choice_here_and_later_tokens_do_not_count() -> None:
    choice = a_choice("END")
    arrive(choice, 0, b"oneENDtwo")
    events, stopped = take(choice)
    assert events == [Delta(0, "one", ()), Finished(0, FinishReason.STOP_STRING, "END", 6)]
    assert stopped == [0]
    assert arrive(choice, 9, b"more") == 0
    choice.end(FinishReason.STOP_STRING)
    assert take(choice) == ([], [])
    assert choice.num_tokens == 6


@pytest.mark.failure("B079")
def test_logprobs_stay_with_their_tokens_over_takes() -> None:
    choice = a_choice("zz", keep_records=True)
    choice.arrive(0, list(b"az"), [-0.1, -0.2], [((98, -1.0),), ()])
    first, _ = take(choice)
    choice.arrive(1, list(b"zb"), [-0.2, -0.3], [(), ()])
    second, _ = take(choice)
    tokens = [token for event in (*first, *second) if isinstance(event, Delta) for token in event.tokens]
    assert [(token.token_id, token.logprob) for token in tokens] == [(97, -0.1), (122, -0.2), (98, -0.3)]
    assert tokens[0].top == ((98, b"b", -1.0),)
