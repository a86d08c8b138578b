"""A prompt is given back whole, once, with a score for each token that follows another."""

import pytest

from gateway.core.choice import Gap
from gateway.core.events import TokenRecord
from gateway.core.prompt_echo import PromptEcho

IDS = [256, 97, 98, 99]
"""A token without text, and `abc`."""


def token_bytes(token_id: int) -> bytes:
    return bytes([token_id]) if token_id < 256 else b""


def an_echo(ids: list[int] = IDS, text: str | None = None, *, is_scored: bool = True) -> PromptEcho:
    return PromptEcho(ids, token_bytes, text=text, keep_records=is_scored, is_scored=is_scored)


def test_it_is_complete_with_the_last_score_and_the_first_token_has_none() -> None:
    echo = an_echo()
    echo.arrive(1, [-1.0], [((97, -1.0), (98, -2.0))])
    assert not echo.is_complete
    echo.arrive(2, [-3.0, -4.0], [((98, -3.0),), ()])
    assert echo.is_complete
    given = echo.take()
    assert echo.is_told
    assert given.text == "abc"
    assert given.tokens == (
        TokenRecord(256, b""),
        TokenRecord(97, b"a", -1.0, ((97, b"a", -1.0), (98, b"b", -2.0))),
        TokenRecord(98, b"b", -3.0, ((98, b"b", -3.0),)),
        TokenRecord(99, b"c", -4.0),
    )


def test_scores_that_come_again_are_dropped() -> None:
    echo = an_echo()
    echo.arrive(1, [-1.0, -2.0], [(), ()])
    echo.arrive(1, [-1.0, -2.0, -3.0], [(), (), ()])
    assert [token.logprob for token in echo.take().tokens] == [None, -1.0, -2.0, -3.0]


@pytest.mark.parametrize(("first", "count"), [(2, 1), (1, 4)])
def test_missing_or_surplus_scores_are_an_error(first: int, count: int) -> None:
    with pytest.raises(Gap):
        an_echo().arrive(first, [-1.0] * count, [()] * count)


def test_one_token_or_no_question_waits_for_nothing() -> None:
    assert an_echo([97]).is_complete
    plain = an_echo(is_scored=False)
    assert plain.is_complete
    assert plain.take().tokens == ()


@pytest.mark.parametrize(
    ("ids", "given", "text", "first"),
    [
        ([256, 32, 97], "a", "a", b""),
        ([256, 32, 97], " a", " a", b" "),
        ([256, 32, 97], None, " a", b" "),
        ([0xC3, 97], None, "\ufffda", b"\xc3"),
    ],
)
def test_the_text_is_the_callers_without_a_space_that_the_tokenizer_put_in_front(
    ids: list[int], given: str | None, text: str, first: bytes
) -> None:
    echo = an_echo(ids, given)
    echo.arrive(1, [-1.0] * (len(ids) - 1), [()] * (len(ids) - 1))
    told = echo.take()
    assert told.text == text
    assert next(token.token_bytes for token in told.tokens if token.token_id != 256) == first
