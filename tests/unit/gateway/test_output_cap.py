"""Answers that are capped end with a sentence, a word or a closed code block, however tokens were grouped."""

import random
import unicodedata

import pytest

from gateway.core.output_cap import OutputCap


def capped(tokens: list[str], num_tokens: int, *, limit: int | None = None) -> str:
    """Return the answer of a model that says `tokens`, up to `limit` of them."""
    cap, shown = OutputCap(num_tokens), ""
    for number, token in enumerate(tokens[:limit], start=1):
        shown += cap.feed(token, number)
        if cap.is_over:
            return shown
    return shown + cap.finish(is_cut=limit is not None and limit < len(tokens))


def words(text: str) -> list[str]:
    """Split as tokenizers do: a word has its space in front."""
    tokens: list[str] = []
    for char in text:
        if char in " \n" or not tokens:
            tokens.append(char)
        else:
            tokens[-1] += char
    return tokens


def test_an_answer_below_the_cap_is_whole() -> None:
    text = "One. Two. Three."
    assert capped(words(text), 100) == text


def test_it_ends_with_the_sentence_that_reaches_the_cap() -> None:
    assert capped(words("One two. Three four. Five six. Seven."), 4) == "One two. Three four."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("It costs 3.14 euros today. More follows.", "It costs 3.14 euros today."),
        ("Ask Dr. Who about it. More follows.", "Ask Dr. Who about it."),
        ("Take e.g. J. S. Bach here. More follows.", "Take e.g. J. S. Bach here."),
        ("The U.S. is big. More follows.", "The U.S. is big."),
        ("See Ph.D. theses (e.g. mine) first. More follows.", "See Ph.D. theses (e.g. mine) first."),
        ("1. First thing to do\n2. Second", "1. First thing to do"),
        ('She said "stop." Then she went.', 'She said "stop."'),
        ("Really?! Yes. No.", "Really?!"),
        ("**Bold.** Then more.", "**Bold.**"),
    ],
)
def test_a_full_stop_that_ends_no_sentence_ends_no_answer(text: str, shown: str) -> None:
    assert capped(words(text), 1) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("今天天气很好。明天会下雨。", "今天天气很好。"),
        ("他说:「今天很好。」然后走了。", "他说:「今天很好。」"),
        ("本当ですか？！はい。", "本当ですか？！"),
        ("यह अच्छा है। वह नहीं।", "यह अच्छा है।"),
    ],
)
def test_scripts_with_full_stops_of_their_own_end_there(text: str, shown: str) -> None:
    assert capped(list(text), 1) == shown


def test_without_a_sentence_end_in_time_it_ends_after_a_whole_word() -> None:
    tokens = ["Some", " words", " with", "out", " any", " un", "der", "stand", "able", " end"]
    assert capped(tokens, 2, limit=8) == "Some words without any"


def test_text_without_spaces_is_cut_at_a_pause() -> None:
    assert capped(list("天气很好，我们去公园玩了很久很久"), 2, limit=12) == "天气很好，"


@pytest.mark.parametrize(
    ("shown", "rest"),
    [
        ("我们团队长期研究人工智能的", "发展方向"),
        ("他们去年访问了", "北京人工智能学院"),
        ("你们是不是喜欢北京吗", "大家"),
        ("我们公司使用GPU", "训练模型"),
        ("私たちは東京で人工知能を", "研究所"),
        ("最近のニュース記事と", "論文"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_where_no_pause_comes_it_ends_after_a_particle_or_where_the_script_changes(
    shown: str, rest: str, size: int
) -> None:
    """Wherever the cap falls."""
    text = shown + rest
    tokens = [text[at : at + size] for at in range(0, len(text), size)]
    for first in range(1, len(shown) // size + 1):
        assert capped([*tokens, "。"], first, limit=len(tokens)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "他们去年试图了解北京人工智能学院",
        "已经达到目的地",
        "我们公司销售T恤衫和裤子",
        "知人女の子可愛",
        "正在研究人工智能",
    ],
)
def test_where_no_end_of_a_word_is_known_it_ends_at_the_cap(text: str) -> None:
    """What is written like a particle or alone among other letters may be a part of a word."""
    assert capped([*text, "。"], 3, limit=len(text)) == text[:2]


@pytest.mark.parametrize(
    ("text", "first", "shown"),
    [
        ("วันนี้อากาศดี พรุ่งนี้ฝนตก", 5, "วันนี้อากาศดี"),
        ("สวัสดีครับ วันนี้อากาศดีมากพรุ่งนี้", 3, "สวัสดีครับ"),
    ],
)
def test_thai_whose_phrases_are_parted_by_spaces_is_cut_there(text: str, first: int, shown: str) -> None:
    assert capped(list(text), first, limit=text.index("ฝ" if "ฝ" in text else "พ")) == shown


@pytest.mark.parametrize(
    ("shown", "rest"),
    [
        ("น้ำ", "ใจงามมาก"),
        ("เรื่", "องราวของมาก"),
        ("ທີ່", "ສຸດຍອດຫຼາຍ"),
        ("ខ្ញុំ", "ស្រឡាញ់អ្នក"),
        ("မြန်", "မာစာပေကောင်း"),
    ],
)
def test_where_nothing_parts_words_no_letter_loses_its_vowels_and_marks(shown: str, rest: str) -> None:
    """Wherever the cap falls; a character a token is the worst case."""
    for first in range(2, len(shown) + 2):
        answer = capped(list(shown + rest), first, limit=len(shown) + 3)
        following = (shown + rest)[len(answer)]
        assert not unicodedata.category(following).startswith("M"), (first, answer)
        assert answer[-1] not in "เแโใไ\u17d2\u1039", (first, answer)


def test_what_the_model_ends_itself_is_given_whole() -> None:
    assert capped(["Half", " a", " wo", "rd"], 2) == "Half a word"


CODE = "Here:\n```py\nx = 1. \ny = 2\nz = 3\n```\nDone. More."


def test_no_sentence_ends_inside_a_code_block_and_the_block_is_shown_to_its_end() -> None:
    assert capped(words(CODE), 4) == "Here:\n```py\nx = 1. \ny = 2\nz = 3\n```"


def test_a_code_block_that_does_not_end_in_time_is_closed_after_a_whole_line() -> None:
    tokens = words(CODE)
    limit = tokens.index("\nz")
    assert capped(tokens, 4, limit=limit + 2) == "Here:\n```py\nx = 1. \ny = 2\n```\n"


def test_a_code_block_cut_in_a_line_that_was_shown_is_closed_on_a_line_of_its_own() -> None:
    assert capped(["```\n", "a long", "li", "ne"], 3, limit=3) == "```\na long\n```\n"


def test_a_block_whose_closing_fence_is_the_last_token_is_not_closed_twice() -> None:
    assert capped(["```\n", "x\n", "```", "\n", "more"], 1, limit=3) == "```\nx\n```"


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_shown_that_the_model_did_not_say_and_no_word_is_halved(seed: int) -> None:
    choose = random.Random(seed)
    kinds = [" word", " un", "der", ".", ", ", " e.g.", "\n", "字", "。", "，"]
    pieces = choose.choices(kinds, k=60)
    text, first = "".join(pieces), choose.randint(1, 30)
    shown = capped(pieces, first, limit=first + choose.randint(1, 29))
    assert text.startswith(shown)
    before = "".join(pieces[: first - 1])
    assert len(shown) >= len(before), "what was made before the cap is all there"
    if len(shown) > len(before) and not shown.endswith(("，", "。")):
        following = text[len(shown) : len(shown) + 1]
        changes_script = (shown[-1] == "字") != (following == "字")
        assert not following or following.isspace() or shown[-1] in ".\n" or changes_script
