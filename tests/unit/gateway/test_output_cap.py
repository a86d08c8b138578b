"""Answers that are capped end with a sentence, a word or a closed code block, however tokens were grouped."""

import random

import pytest

from gateway.core.output_cap import CLAUSE_TOKENS, SENTENCE_TOKENS, OutputCap


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("全角は３．１４です．次です", "全角は３．１４です．"),
        ("他说好,我来了.明天见", "他说好,我来了."),
        ("ปีพ.ศ. ๒๕๖๗ มาถึงแล้ว! จบ", "ปีพ.ศ. ๒๕๖๗ มาถึงแล้ว!"),
        ("Call `a. b` twice. Then stop", "Call `a. b` twice."),
        ("Quoi ? Oui. Non", "Quoi ?"),
    ],
)
def test_a_mark_inside_a_number_a_word_or_code_ends_no_sentence(text: str, shown: str) -> None:
    assert capped(list(text), 1) == shown


CLAUSE, WORD = SENTENCE_TOKENS, SENTENCE_TOKENS + CLAUSE_TOKENS


def late(text: str, num_over: int) -> str:
    """Return what is shown of `text` where it begins `num_over` tokens after the cap."""
    return capped(["is"] * num_over + list(text), 0)[2 * num_over :]


def test_a_clause_ends_no_answer_before_a_sentence_had_its_time() -> None:
    text = " one, two; three"
    assert late(text, CLAUSE - len(text)) == text
    assert late(text, CLAUSE) == " one,"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("天气很好，我们去公园", "天气很好，"),
        ("共有１，０００人、很多", "共有１，０００人、"),
        ("天气很好,我们去公园", "天气很好,"),
        ("about 1,000 of them; more", "about 1,000 of them;"),
        ("at 10:30 or so — or later", "at 10:30 or so —"),
        ("قال نعم، ثم ذهب", "قال نعم،"),
        ("ကောင်းတယ်၊ သွားမယ်", "ကောင်းတယ်၊"),
    ],
)
def test_then_it_ends_with_a_clause(text: str, shown: str) -> None:
    assert late(text, CLAUSE - 2) == shown


def test_no_space_ends_an_answer_before_a_clause_had_its_time() -> None:
    text = " with out any"
    assert late(text, WORD - len(text)) == text
    assert late(text, WORD) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("สวัสดีครับผม วันนี้", "สวัสดีครับผม"),
        ("สิ่งต่าง ๆ นี้", "สิ่งต่าง ๆ"),
        ("ខ្ញុំ\u200bស្រឡាញ់", "ខ្ញុំ"),
        ("使用GPU 训练模型", "使用GPU"),
        ("costs 10 000 euros", "costs"),
        ("10 000 euros", "10 000"),
        ("10\u00a0000\u202f€ now", "10\u00a0000\u202f€"),
        ("post- and pre-war words", "post- and"),
        ("`a b` is code", "`a b`"),
    ],
)
def test_then_it_ends_where_a_space_parts_words(text: str, shown: str) -> None:
    assert late(text, WORD) == shown


@pytest.mark.parametrize(
    "text",
    [
        "我们团队长期研究人工智能的发展方向使用GPU训练模型他们去年访问了北京",
        "私たちは東京で人工知能を研究しているジョン・スミスと申します",
        "สวัสดีครับวันนี้อากาศดีมากพรุ่งนี้ฝนตกน้ำใจงามเรื่องราวของเรา",
        "ខ្ញុំស្រឡាញ់អ្នក",
        "ທີ່ສຸດຍອດຫຼາຍ",
        "မြန်မာစာပေကောင်း",
        "བཀྲ་ཤིས་བདེ་ལེགས་",
        "Việt Nam là một quốc gia nằm ở phía đông bán đảo",
        "https://example.org/a/very-long/path?with=many&parts=1",
        "pneumonoultramicroscopicsilicovolcanoconiosis",
    ],
)
@pytest.mark.parametrize("size", [1, 3])
def test_where_nothing_says_that_a_word_ends_it_goes_on_to_its_own_limit(text: str, size: int) -> None:
    """The control is the same text with punctuation: it ends there."""
    many = text if " " in text and "Việt" not in text else text * 40
    tokens = [many[at : at + size] for at in range(0, len(many), size)]
    assert len(many) < 3 * WORD or len(tokens) > WORD + 10
    assert capped([*tokens, "x"], 2, limit=len(tokens)) == many
    assert capped([*tokens, "。", "x"], 2) == f"{many}。"


def test_a_mixed_answer_ends_at_its_first_full_stop_of_either_kind() -> None:
    assert capped(list("モデルはGPT-4.5です。Next one. 次"), 3) == "モデルはGPT-4.5です。"
    assert capped(list("The word 日本 is a name. 次です。"), 3) == "The word 日本 is a name."


def test_what_the_model_ends_itself_is_given_whole() -> None:
    assert capped(["Half", " a", " wo", "rd"], 2) == "Half a word"


CODE = "Here:\n```py\nx = 1. \ny = 2\nz = 3\n```\nDone. More."


def test_no_sentence_ends_inside_a_code_block_and_the_block_is_shown_to_its_end() -> None:
    assert capped(words(CODE), 4) == "Here:\n```py\nx = 1. \ny = 2\nz = 3\n```"


def test_a_code_block_that_does_not_end_in_time_is_closed_after_a_whole_line() -> None:
    code = "".join(f"line {number}. \n" for number in range(40))
    shown = capped(list(f"```py\n{code}"), 10)
    assert shown == f"```py\n{code[: shown.count('line') * 9]}```\n"[: len(shown)]
    assert shown.endswith(". \n```\n")
    assert WORD <= len(shown) < WORD + 40, "the first line after its time"


def test_a_code_block_that_its_own_limit_cuts_is_closed_on_a_line_of_its_own() -> None:
    assert capped(["```\n", "a long", "li", "ne"], 3, limit=3) == "```\na longli\n```\n"
    assert capped(["```\n", "a line\n", "li", "ne"], 2, limit=2) == "```\na line\n```\n"


def test_a_block_whose_closing_fence_is_the_last_token_is_not_closed_twice() -> None:
    assert capped(["```\n", "x\n", "```", "\n", "more"], 1, limit=3) == "```\nx\n```"


@pytest.mark.parametrize("seed", range(100))
def test_no_word_is_halved_however_the_tokens_were_grouped(seed: int) -> None:
    choose = random.Random(seed)
    kinds = [" word", " un", "der", ", ", " e.g.", "字", "，", "`", "\n", "ไทย", "12"]
    pieces = choose.choices(kinds, weights=[8, 5, 5, 1, 1, 4, 1, 1, 0.2, 3, 2], k=200)
    text, first = "".join(pieces), choose.randint(1, 30)
    shown = capped(pieces, first)
    assert text.startswith(shown)
    assert len(shown) >= len("".join(pieces[: first - 1])), "what was made before the cap is all there"
    following = text[len(shown) : len(shown) + 1]
    assert not following or following.isspace() or shown[-1] == "，"


@pytest.mark.parametrize("seed", range(20))
def test_what_is_shown_does_not_depend_on_how_the_text_came(seed: int) -> None:
    """Past all times that the cap gives, the same text in other tokens ends at the same place."""
    choose = random.Random(seed)
    text = "".join(choose.choices([" word", "der", "字", "ไทย", "12", "- ", "`", "\n", ". "], k=60))
    start = ["is"] * WORD
    cuts = sorted(choose.sample(range(1, len(text)), 10))
    tokens = [text[at:to] for at, to in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert capped([*start, *tokens], 0) == capped([*start, *text], 0)
