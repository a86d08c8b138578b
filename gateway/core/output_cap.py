"""Ends one answer early without spoiling it: at the end of a sentence, never inside a word or a code block.

Takes the text of one choice token by token, so the result does not depend on how tokens
were grouped. From `num_tokens` on it looks for the end of a sentence; what may be half a word is held, so
that an answer that finds no such end by its limit stops after a whole word. Where no space parts words it
stops at a pause, and where none comes either where a word of Chinese or Japanese most likely ends: after a
particle, or where Latin letters begin or end. Where all of that fails it does not stop inside a letter with
its vowels and marks; which letters are a word then takes a dictionary, which this is not. Knows tokens by
number only.
"""

import re
import unicodedata

GRACE_TOKENS = 64
"""Tokens in which an answer that has reached its cap may find the end of its sentence."""

_TERMINATORS = (".", "!", "?", "\u2026")
_WIDE_TERMINATORS = ("\u3002", "\uff01", "\uff1f", "\uff0e", "\u0964", "\u06d4", "\u1362", "\u104b", "\u17d4")
"""Of scripts that put no space after a sentence, and of those with a full stop of their own."""
_CLOSERS = "\"')]}*_\u201d\u2019\u00bb\u300d\u300f\uff09"
_WIDE_PAUSES = "\uff0c\u3001\uff1b\uff1a"
"""Where text without spaces may be cut if no sentence ends in time."""
_BEFORE_CONSONANT = "\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4"
"""Vowels of Thai and Lao that are written before the consonant after which they are spoken."""
_AFTER_CONSONANT = "\u0e30\u0e32\u0e33\u0e45\u0e46\u0eb0\u0eb2\u0eb3\u0ec6"
"""Theirs that begin no syllable, though they are no marks."""
_STACKERS = "\u17d2\u1039"
"""Marks of Khmer and Burmese that put the next consonant below."""
_NO_END = re.compile(
    r"(?:^|[\s(])(?:(?:[^\W\d_]{1,2}\.)*[^\W\d_]|\d+|[Dd]r|Mrs?|Ms|Prof|St|No|vs|etc|cf|approx)\.$",
    re.MULTILINE,
)
"""A full stop after initials (J., U.S., Ph.D.), a list's number or a common abbreviation ends no sentence."""
_IDEOGRAPH = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KATAKANA = "\u30a1-\u30fa"
_KANA = f"\u3041-\u3096{_KATAKANA}"
_WORD_END = re.compile(
    # Japanese: a particle or an ending of verbs, and what begins a word; not 女の子.
    rf"(?<=[はがをにへとでもやのるた])(?!子)(?=[{_IDEOGRAPH}{_KATAKANA}])"
    # Chinese: particles; not 的确, 的士, 目的地, 标的物, 了解, 了不起, 吗啡 and their like.
    r"|(?<=的)(?<!目的)(?<!标的)(?![确確士])(?=.)"
    r"|(?<=了)(?![解不结結如却卻然得])(?=.)"
    r"|(?<=[吗嗎呢嘛])(?!啡)"
    # One Latin letter is part of a word: T恤, X光.
    rf"|(?<=[A-Za-z]{{2}})(?=[{_IDEOGRAPH}{_KANA}])|(?<=[{_IDEOGRAPH}{_KANA}])(?=[A-Za-z]{{2}})"
)
"""What is a word's end, most likely, in text without spaces."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class OutputCap:
    """The cap of one choice.

    Args:
        num_tokens: From here on the answer ends with its sentence.
    """

    __slots__ = ("_fence", "_held", "_line", "_num_tokens", "is_over")

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._line = ""
        """The line so far, given out or held."""
        self._held = ""
        """The end of the text that is not given out: what may be half a word."""
        self._fence = ""
        """What closes the code block that is open."""
        self.is_over = False
        """The answer has ended here; nothing more may be fed."""

    def feed(self, text: str, num_tokens: int) -> str:
        """Take the text of the next token and return what may be shown.

        Args:
            num_tokens: Tokens of the choice up to and with this one.
        """
        if num_tokens < self._num_tokens:
            for char in text:
                self._step(char)
            return text
        for char in text:
            if self._ends_before(char):
                self.is_over = True
                shown, self._held = self._held, ""
                return shown
            self._step(char)
            self._held += char
        cut = self._boundary()
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self, *, is_cut: bool) -> str:
        """End the text and return what may still be shown.

        Args:
            is_cut: The limit ended it: what is held goes from its last whole word on, a code block is closed.
        """
        held, self._held = self._held, ""
        if not is_cut or self._closes_block():
            return held
        if not self._fence:
            return held[: _whole_words(self._line[: -len(held)][-2:], held)] if held else ""
        return f"{self._fence}\n" if held == self._line else f"\n{self._fence}\n"

    def _ends_before(self, char: str) -> bool:
        """Say whether a sentence or a code block is complete and `char` begins something new."""
        if self._fence:
            return char == "\n" and self._closes_block()
        if char == "\n":
            return bool(self._line.strip()) and not _FENCE.match(self._line)
        sentence = self._line.rstrip(_CLOSERS)
        if sentence.endswith(_WIDE_TERMINATORS):
            return char not in _CLOSERS and char not in _WIDE_TERMINATORS
        return char.isspace() and sentence.endswith(_TERMINATORS) and not _NO_END.search(sentence)

    def _closes_block(self) -> bool:
        """Say whether the line so far closes the code block that is open."""
        found = _FENCE.match(self._line)
        is_same = bool(self._fence) and found is not None and found[1].startswith(self._fence)
        return is_same and found is not None and not self._line[found.end() :].strip()

    def _boundary(self) -> int:
        """Return how much of the held text ends with a whole word; of code, with a whole line."""
        for index in range(len(self._held) - 1, -1, -1):
            char = self._held[index]
            if self._fence:
                if char == "\n":
                    return index + 1
            elif char.isspace():
                return index  # It is shown with the word after it, so that no answer ends with one.
            elif char in _WIDE_PAUSES:
                return index + 1
        return 0

    def _step(self, char: str) -> None:
        """Follow lines, and the code blocks that they open and close."""
        if char != "\n":
            self._line += char
            return
        if self._closes_block():
            self._fence = ""
        elif not self._fence and (found := _FENCE.match(self._line)) is not None:
            self._fence = found[1]
        self._line = ""


def _whole_words(before: str, held: str) -> int:
    """Return how many of the first characters held end with a word, after the two `before` them.

    Where a space or a pause parts both, everything up to it was shown, and nothing more is.
    """
    if held[0].isspace() or before.endswith(tuple(_WIDE_PAUSES)):
        return 0
    ends = [found.start() - len(before) for found in _WORD_END.finditer(before + held)]
    return ends[-1] if ends and ends[-1] >= 0 else _rest_of_letter(before[-1:], held)


def _rest_of_letter(before: str, held: str) -> int:
    """Return how many of the first characters held belong to the letter `before` them."""
    joins = bool(before) and before in _BEFORE_CONSONANT + _STACKERS
    for index, char in enumerate(held):
        is_mark = unicodedata.category(char).startswith("M") or char in _AFTER_CONSONANT
        if not is_mark and not (joins and char.isalpha()):
            return index
        joins = char in _STACKERS
    return len(held)
