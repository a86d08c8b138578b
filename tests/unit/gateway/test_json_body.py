"""What is no JSON, or no Unicode, is refused under the name of what is at fault."""

import pytest

from gateway.http.json_body import read_json
from services.domain.errors import InvalidField


@pytest.mark.parametrize(
    ("body", "field", "at"),
    [
        (rb'{"prompt": "\ud800"}', "prompt", 0),
        (rb'{"prompt": ["ok", "two\uDFFF"]}', "prompt[1]", 3),
        (rb'{"n": 1, "messages": [{"role": "user", "content": "a\uD83D"}]}', "messages[0].content", 1),
        (rb'{"first": {"a": "\ud800"}, "second": "\ud800"}', "first.a", 0),
        (rb'{"x\ud800": 1}', "body", 1),
        (rb'"\ud800"', "body", 0),
    ],
)
def test_half_a_surrogate_pair_is_refused_by_the_name_of_its_field(body: bytes, field: str, at: int) -> None:
    with pytest.raises(InvalidField, match=f"got a lone surrogate at {at}") as caught:
        read_json(body)
    assert caught.value.detail.field == field


def test_a_whole_pair_is_one_character() -> None:
    assert read_json(rb'{"prompt": "\ud83d\ude00"}') == {"prompt": "\U0001f600"}


@pytest.mark.parametrize(
    "body",
    [b"", b'{"a": "\\ud800"', b'{"a": "\\ud800", "b": NaN}', b'["\\ud800", ' + b"[" * 5000, b"\xff\\ud"],
)
def test_what_is_no_json_is_refused_as_the_body(body: bytes) -> None:
    with pytest.raises(InvalidField, match="must be valid JSON") as caught:
        read_json(body)
    assert caught.value.detail.field == "body"
