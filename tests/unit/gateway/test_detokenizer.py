"""Text is append-only, equals the full decode, and never shows any of a stop string."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.detokenizer import Detokenizer, StopMatched, StopStrings
from gateway.core.events import TokenRecord

SAMPLES = [
    "h\u00e9llo", "日本語",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 family", "e\u0301 combining \u0327",
    "plain", "\U0001f3f3\ufe0f\u200d\U0001f308\U0001f1e9\U0001f1ea", "\u200d\ufeff",
]  # fmt: skip
texts = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(SAMPLES), max_size=4).map("".join))


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut `data` into tokens' bytes at arbitrary places, also inside characters."""
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(borders)]


class Run:
    """Everything a detokeniser gave for tokens fed in groups."""

    def __init__(
        self,
        tokens: list[bytes],
        groups: list[int],
        stops: tuple[str, ...] = (),
        *,
        include_stop: bool = False,
        keep_records: bool = False,
    ) -> None:
        detokenizer = Detokenizer(
            tokens.__getitem__, stops=stops, include_stop=include_stop, keep_records=keep_records
        )
        self.deltas: list[str] = []
        self.records: list[TokenRecord] = []
        self.matched: StopMatched | None = None
        position = 0
        sizes = iter(groups)
        while position < len(tokens) and self.matched is None:
            size = next(sizes, 1)
            self._take(detokenizer.feed(list(range(position, min(position + size, len(tokens))))))
            position += size
        if self.matched is None:
            self._take(detokenizer.flush())
        self.num_tokens = detokenizer.num_tokens

    def _take(self, given: object) -> None:
        self.deltas.append(given.text)  # type: ignore[attr-defined]
        self.records.extend(given.tokens)  # type: ignore[attr-defined]
        if isinstance(given, StopMatched):
            self.matched = given

    @property
    def text(self) -> str:
        return "".join(self.deltas)


def by_character(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Reference: look at the text one character at a time."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    st.one_of(texts.map(str.encode), st.binary(max_size=30)),
    st.lists(st.integers(0, 200), max_size=30),
    st.lists(st.integers(1, 5), max_size=30),
    st.booleans(),
)
def test_joined_deltas_equal_the_full_decode(
    data: bytes, cuts: list[int], groups: list[int], keep_records: bool
) -> None:
    run = Run(pieces(data, cuts), groups, keep_records=keep_records)
    assert run.text == data.decode("utf-8", errors="replace")


@pytest.mark.failure("B070")
@pytest.mark.failure("B073")
@given(
    st.text(alphabet="ab é👍", max_size=30),
    st.lists(st.text(alphabet="ab é👍", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 200), max_size=30),
    st.lists(st.integers(1, 5), max_size=30),
)
def test_stop_strings_do_not_depend_on_token_borders(
    text: str, stops: list[str], cuts: list[int], groups: list[int]
) -> None:
    run = Run(pieces(text.encode(), cuts), groups, tuple(stops))
    expected, stop = by_character(text, tuple(stops))
    assert run.text == expected
    assert (run.matched.stop_string if run.matched else None) == stop


@pytest.mark.failure("B070")
@given(
    st.text(alphabet="ab", max_size=20),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_withheld_text_is_exactly_the_longest_proper_prefix_of_a_stop(text: str, stops: list[str]) -> None:
    longest = max(
        (n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])),
        default=0,
    )
    assert StopStrings(stops).held_back(text) == longest


@pytest.mark.failure("B070")
@pytest.mark.parametrize(
    ("tokens", "stops", "expected", "stop"),
    [
        ([b" alpha", b" zeta", b" eta", b" theta"], (" zeta eta theta",), " alpha", " zeta eta theta"),
        ([b"The br", b"own", b" f", b"ox", b" runs"], ("own fox",), "The br", "own fox"),
        ([b"done<", b"/", b"s", b">"], ("</s",), "done", "</s"),
        ([b"done<", b"/", b"p"], ("</s",), "done</p", None),
        ([b"end", b" ze"], (" zeta",), "end ze", None),
    ],
)
def test_a_stop_across_tokens_leaks_nothing(
    tokens: list[bytes], stops: tuple[str, ...], expected: str, stop: str | None
) -> None:
    run = Run(tokens, [], stops)
    assert run.text == expected
    assert (run.matched.stop_string if run.matched else None) == stop


def test_include_stop_leaves_it_in_the_text_and_cuts_what_follows() -> None:
    run = Run([b"one END two"], [], ("END",), include_stop=True)
    assert run.text == "one END"


def test_a_character_is_held_until_its_bytes_are_complete() -> None:
    data = "👍".encode()
    run = Run([data[:1], data[1:3], data[3:]], [])
    assert run.deltas == ["", "", "👍", ""]


@pytest.mark.failure("B079")
@given(
    st.text(alphabet="ab👍é", max_size=20),
    st.lists(st.integers(0, 200), max_size=20),
    st.lists(st.integers(1, 4), max_size=20),
    st.lists(st.text(alphabet="ab👍", min_size=1, max_size=3), max_size=2),
)
def test_each_token_has_one_record_in_order(
    text: str, cuts: list[int], groups: list[int], stops: list[str]
) -> None:
    tokens = pieces(text.encode(), cuts)
    run = Run(tokens, groups, tuple(stops), keep_records=True)
    assert [record.token_id for record in run.records] == list(range(run.num_tokens))
    assert [record.token_bytes for record in run.records] == tokens[: run.num_tokens]


@pytest.mark.failure("B079")
def test_a_record_comes_with_the_delta_that_completes_its_text() -> None:
    emoji = "👍".encode()
    tokens = [b"a", emoji[:2], emoji[2:], b" st", b"op?"]
    detokenizer = Detokenizer(tokens.__getitem__, stops=(" stop!",), keep_records=True)
    given = [detokenizer.feed([index], [-0.5], [((7 - 7, -1.0),)]) for index in range(5)]
    assert [g.text for g in given] == ["a", "", "👍", "", " stop?"]
    assert [[t.token_id for t in g.tokens] for g in given] == [[0], [], [1, 2], [], [3, 4]]
    assert given[0].tokens[0] == TokenRecord(0, b"a", -0.5, ((0, b"a", -1.0),))


@pytest.mark.failure("B104")
def test_the_text_of_a_stop_id_is_not_shown() -> None:
    tokens = [b"hi", b"<stop>"]
    shown = Detokenizer(tokens.__getitem__, stop_token_ids=frozenset({1}))
    kept = Detokenizer(tokens.__getitem__, stop_token_ids=frozenset({1}), include_stop=True)
    assert shown.feed([0, 1]).text == "hi"
    assert kept.feed([0, 1]).text == "hi<stop>"
