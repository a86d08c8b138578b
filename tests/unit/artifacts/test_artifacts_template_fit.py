"""A conversation that is too long is cut from the left: the oldest turns first, the system message never."""

import pytest
from artifact_builders import Message
from template_builders import CHATML, LLAMA2

from services.artifacts.chat_template import ChatTemplate
from services.artifacts.tokenizer import ModelTokenizer
from services.domain.errors import PromptTooLong

LONG = [
    Message("system", "Be brief."),
    Message("user", "one " * 20),
    Message("assistant", "two " * 20),
    Message("user", "three " * 20),
    Message("assistant", "four " * 20),
    Message("user", "five " * 20),
]


def test_what_fits_is_left_alone(tiny: ModelTokenizer) -> None:
    template = ChatTemplate(LLAMA2, tiny)
    ids = template.encode(LONG)

    fitted = template.encode_to_fit(LONG, len(ids))

    assert (fitted.ids, fitted.num_dropped, fitted.num_cut_chars) == (ids, 0, 0)


@pytest.mark.parametrize(("kept", "num_dropped"), [([0, 3, 4, 5], 2), ([0, 5], 4)])
def test_the_oldest_turns_go_and_the_system_message_stays(
    tiny: ModelTokenizer, kept: list[int], num_dropped: int
) -> None:
    template = ChatTemplate(LLAMA2, tiny)
    expected = template.encode([LONG[index] for index in kept])

    fitted = template.encode_to_fit(LONG, len(expected))

    assert fitted.ids == expected
    assert (fitted.num_dropped, fitted.num_cut_chars) == (num_dropped, 0)


def test_the_last_message_is_cut_as_a_last_resort(tiny: ModelTokenizer) -> None:
    template = ChatTemplate(LLAMA2, tiny)
    limit = len(template.encode([LONG[0], LONG[5]])) - 20

    fitted = template.encode_to_fit(LONG, limit)

    assert limit - 4 < len(fitted.ids) <= limit
    assert fitted.num_dropped == 4
    assert 0 < fitted.num_cut_chars < 100
    rest = LONG[5].content[fitted.num_cut_chars :]
    assert fitted.ids == template.encode([LONG[0], Message("user", rest)])


def test_a_single_long_message_is_cut(tiny: ModelTokenizer) -> None:
    template = ChatTemplate(CHATML, tiny)

    fitted = template.encode_to_fit([Message("user", "a b " * 5000)], 50)

    assert 46 < len(fitted.ids) <= 50
    assert fitted.num_dropped == 0


def test_system_messages_that_alone_are_too_long_are_refused(tiny: ModelTokenizer) -> None:
    template = ChatTemplate(CHATML, tiny)

    with pytest.raises(
        PromptTooLong, match=r"must have at most 20 tokens in the system message .* got [0-9]+ or more"
    ):
        template.encode_to_fit([Message("system", "word " * 100), Message("user", "hi")], 20)
