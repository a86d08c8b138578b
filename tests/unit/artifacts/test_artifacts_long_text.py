"""A text that is far too long costs no more than what fits, and one that fits is never taken for too long."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.artifacts import long_text
from services.artifacts.artifact import open_artifact
from services.artifacts.chat_template import ChatTemplate
from services.artifacts.long_text import LongTexts, TooManyTokens
from services.artifacts.tokenizer import ModelTokenizer

LIMIT = 8192
WORDS = "the river carries small boats past old walls, while children count slow clouds over green hills. "
CJK = "今天天气很好，我们一起去公园散步吧。他说这本书非常有意思，值得再读一遍！"
CODE = "def f(x: int) -> str:\n    return f'{x!r:>10}'  # 0x1F, 12345.678e-9\n\n\n"
FAR_TOO_LONG = {
    "words": WORDS * 7000,
    "cjk": CJK * 6000,
    "code": CODE * 9000,
    "digits": "31415926535897932384626433" * 25_000,
    "one letter": "a" * 650_000,
    "lines": "x\n" * 300_000,
    "unbroken": "QmFzZTY0IGlzIG5vdCB0ZXh0Lg==" * 25_000,
    "two letters": "ab" * 300_000,
}
FRAGMENTS = st.sampled_from([
    *("the", " the", "The", "'s", "'ll", "don't", " ", "  ", "\n", "\n\n", "\t", "\r\n", "   \n  "),
    *("1", "12", "1234567", "3.14", "a", "aaaa", "A1b2", "_", "__init__", "->", "=>", "!!!", "...", ");\n"),
    *("今天", "天", "，", "。", "가나", "ก็", "é", "e\u0301", "👩‍👩‍👧", "🏳️‍🌈", "\u00a0", "\u200b", "ﬁ", "Ω"),
    *("http://", "<|im_start|>", "</s>", "&amp;", "{'a': [1, 2]}", "x" * 40, " " * 20, "=" * 30),
])  # fmt: skip


@pytest.fixture(scope="module")
def real(model_path: Path) -> ModelTokenizer:
    return open_artifact(model_path).tokenizer


@pytest.fixture(scope="module")
def template(model_path: Path) -> ChatTemplate:
    found = open_artifact(model_path).template
    assert found is not None
    return found


@dataclass(frozen=True)
class Message:
    role: str
    content: str
    name: str | None = None


@pytest.fixture
def given_chars(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the characters that are given to the tokeniser."""
    total = 0
    encode = ModelTokenizer._encode_ordinary

    def counting(self: ModelTokenizer, text: str, *, is_first: bool) -> list[int]:
        nonlocal total
        total += len(text)
        return encode(self, text, is_first=is_first)

    monkeypatch.setattr(ModelTokenizer, "_encode_ordinary", counting)
    return lambda: total


@pytest.mark.failure("B102")
@pytest.mark.parametrize("name", FAR_TOO_LONG)
def test_what_is_far_too_long_is_given_up_after_what_would_fit(
    real: ModelTokenizer, given_chars: Callable[[], int], name: str
) -> None:
    with pytest.raises(TooManyTokens):
        real.encode_text(FAR_TOO_LONG[name], add_bos=True, max_tokens=LIMIT)
    assert given_chars() < 8 * LIMIT


@pytest.mark.failure("B102")
def test_so_is_a_conversation(template: ChatTemplate, given_chars: Callable[[], int]) -> None:
    chats = [
        [Message("user", FAR_TOO_LONG["words"])],
        [Message("user" if turn % 2 else "assistant", WORDS * 20) for turn in range(1, 400)],
    ]
    for chat in chats:
        before = given_chars()
        with pytest.raises(TooManyTokens):
            template.encode(chat, max_tokens=LIMIT)
        assert given_chars() - before < 8 * LIMIT


def test_what_is_a_little_too_long_comes_back_whole(real: ModelTokenizer) -> None:
    ids = real.encode_text(WORDS * 500, add_bos=True)
    assert real.encode_text(WORDS * 500, add_bos=True, max_tokens=len(ids) - 1) == ids


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(FRAGMENTS, min_size=30, max_size=120), repeats=st.integers(1, 3))
def test_what_fits_is_never_given_up(real: ModelTokenizer, parts: list[str], repeats: int) -> None:
    text = "".join(parts) * repeats
    num_tokens = len(real.encode_text(text, add_bos=False))
    with pytest.MonkeyPatch.context() as patch:
        # Cut as often as possible, and look at texts of any length.
        patch.setattr(long_text, "PART_CHARS", 8)
        patch.setattr(long_text, "USUAL_CHARS", 0)
        patch.setattr(long_text, "SLACK", 1)
        assert real.encode_text(text, add_bos=False, max_tokens=num_tokens)


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(FRAGMENTS, min_size=30, max_size=120), num_tokens=st.integers(1, 40))
def test_a_tail_has_the_tokens_of_the_whole(real: ModelTokenizer, parts: list[str], num_tokens: int) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_text, "PART_CHARS", 8)
        patch.setattr(long_text, "USUAL_CHARS", 1)
        patch.setattr(long_text, "WINDOW_CHARS", 64)
        fitted = real.encode_text_to_fit(text, num_tokens, add_bos=False)
    whole = real.encode_text(text, add_bos=False)
    assert fitted.ids == whole[-num_tokens:]
    assert 0 <= fitted.num_cut_tokens <= max(0, len(whole) - num_tokens)


@pytest.mark.failure("B102")
def test_only_the_tail_of_a_text_to_be_cut_is_tokenised(
    real: ModelTokenizer, given_chars: Callable[[], int]
) -> None:
    text = WORDS * 40_000
    fitted = real.encode_text_to_fit(text, LIMIT, add_bos=True)
    assert len(fitted.ids) == LIMIT
    assert given_chars() < 8 * LIMIT
    assert text.endswith(real.decode(fitted.ids))
    assert fitted.num_cut_tokens > len(text) // real.max_token_bytes - LIMIT


@pytest.mark.failure("B102")
def test_only_the_end_of_a_conversation_to_be_cut_is_tokenised(
    template: ChatTemplate, given_chars: Callable[[], int]
) -> None:
    system, last = Message("system", "Answer in French."), Message("user", WORDS * 40_000)
    turns = [Message("user" if turn % 2 else "assistant", WORDS * 2000) for turn in range(1, 20)]
    fitted = template.encode_to_fit([system, *turns, last], LIMIT)
    assert LIMIT - 4 < len(fitted.ids) <= LIMIT
    assert (fitted.num_dropped, fitted.num_cut_chars > 0) == (len(turns), True)
    assert given_chars() < 40 * LIMIT
    rest = Message("user", last.content[fitted.num_cut_chars :])
    assert fitted.ids == template.encode([system, rest])
    assert fitted.num_cut_tokens > 0


def test_a_vocabulary_that_lacks_bytes_never_gives_up_by_bytes_alone() -> None:
    tokens = [b"a", b"aa", b"\xc3\xa9"]
    assert LongTexts(tokens, list)._fewest("a" * 10) == 5
    assert LongTexts(tokens, list)._fewest("a☃" * 10) == 0
