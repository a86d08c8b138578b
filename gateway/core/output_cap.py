"""Ends one answer early without spoiling it: at the end of a sentence, never inside a word or a code block.

Takes the text of one choice token by token, so the result does not depend on how tokens were grouped. From
`num_tokens` on it looks for the end of a sentence, a little later for a clause's too, then for any space
between words. It ends nowhere else. Where writing puts no space between words (Chinese, Japanese, Thai, Lao,
Khmer, Burmese, Tibetan) only punctuation and the spaces that there are end it, and where spaces part
syllables (Vietnamese) only punctuation does; which letters are a word would take a dictionary, which this is
not. So an answer may go on to the limit that its request asked for. Knows tokens by number only.
"""

import re

SENTENCE_TOKENS = 64
"""Tokens in which an answer that has reached its cap may find the end of its sentence."""
CLAUSE_TOKENS = 16
"""Tokens after those in which it may find the end of a clause."""

_SENTENCE_MARKS = (".", "!", "?", "\u2026", "\u061f")
"""They end a sentence where a space follows."""
_WIDE_SENTENCE_MARKS = (
    "\u3002",
    "\uff01",
    "\uff1f",
    "\uff0e",
    "\uff61",
    "\u0964",
    "\u0965",
    "\u06d4",
    "\u1362",
    "\u104b",
    "\u17d4",
    "\u17d5",
    "\u0f0d",
    "\u0f0e",
)
"""Of scripts that put no space after a sentence, and of those with a full stop of their own."""
_CLAUSE_MARKS = (",", ";", ":", "\u2014", "\u060c", "\u061b")
_WIDE_CLAUSE_MARKS = (
    "\uff0c",
    "\u3001",
    "\uff1b",
    "\uff1a",
    "\uff64",
    "\u104a",
    "\u17d6",
    "\u1363",
    "\u1364",
)
_CLOSERS = "\"')]}*_\u201d\u2019\u00bb\u300d\u300f\uff09"
_HYPHENS = ("-", "\u2010", "\u00ad")
"""What stands before a space or a line's end after one of these is half a word."""
_BINDERS = "\u00a0\u2007\u202f"
"""Spaces that hold together what is on both sides."""
_ZERO_WIDTH_SPACE = "\u200b"
"""Some write it between the words of Khmer, Thai and Burmese."""
_AFTER_SPACE = "\u0e46\u0eaf!?:;\u00bb"
"""What belongs to the word before the space: signs that repeat or shorten it, and French marks."""
_NO_END = re.compile(
    r"(?:^|[\s(])(?:(?:[^\W\d_]{1,2}\.)*[^\W\d_]|\d+|[Dd]r|Mrs?|Ms|Prof|St|No|vs|etc|cf|approx)\.$"
    r"|[\u0e01-\u0e2e]\.$",
    re.MULTILINE,
)
"""A full stop after initials (J., U.S., Ph.D.), a list's number or a common abbreviation ends no sentence; in
Thai it is only written in abbreviations."""
_IDEOGRAPH = re.compile("[\u3005\u3007\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
"""Chinese and Japanese put narrow marks between these without a space as well."""
_VIETNAMESE = re.compile("[\u01a0\u01a1\u01af\u01b0\u1ea0-\u1ef9]")
"""Letters that no other language writes: its spaces part syllables."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class OutputCap:
    """The cap of one choice.

    Args:
        num_tokens: From here on the answer ends with its sentence.
    """

    __slots__ = ("_fence", "_held", "_is_code", "_line", "_num_tokens", "is_over")

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._line = ""
        """The line so far, without the spaces that are held."""
        self._held = ""
        """Spaces that are shown with what comes after them, so that no answer ends with one."""
        self._is_code = False
        """A piece of code is open in the line."""
        self._fence = ""
        """What closes the code block that is open."""
        self.is_over = False
        """The answer has ended here; nothing more may be fed."""

    def feed(self, text: str, num_tokens: int) -> str:
        """Take the text of the next token and return what may be shown.

        Args:
            num_tokens: Tokens of the choice up to and with this one.
        """
        num_over, shown = num_tokens - self._num_tokens, ""
        for char in text:
            if num_over >= 0 and self._ends_before(char, num_over):
                self.is_over, self._held = True, ""
                return shown + self.finish(is_cut=True)
            if num_over >= 0 and not self._fence and self._line and _is_space(char):
                self._held += char
                continue
            shown += self._held + char
            for one in self._held + char:
                self._step(one)
            self._held = ""
        return shown

    def finish(self, *, is_cut: bool) -> str:
        """End the text and return what is still to be shown.

        Args:
            is_cut: A cap or a limit ended it, not the model: a code block that is open is closed.
        """
        held, self._held = self._held, ""
        if not is_cut or not self._fence or self._closes_block():
            return held
        return f"\n{self._fence}\n" if self._line else f"{self._fence}\n"

    def _ends_before(self, char: str, num_over: int) -> bool:
        """Say whether the answer may end `num_over` tokens after its cap, where `char` begins something."""
        is_late = num_over >= SENTENCE_TOKENS + CLAUSE_TOKENS
        if self._fence:
            # A code block ends as a whole or, where that takes too long, after a line.
            return (char == "\n" and self._closes_block()) or (is_late and not self._line)
        if not self._line or self._line.isspace() or self._line.endswith(_HYPHENS):
            return False
        if char == "\n":
            return not _FENCE.match(self._line)
        if self._is_code or _is_space(char):
            return False
        if self._ends_with(_SENTENCE_MARKS, _WIDE_SENTENCE_MARKS, char):
            return True
        if num_over < SENTENCE_TOKENS:
            return False
        return self._ends_with(_CLAUSE_MARKS, _WIDE_CLAUSE_MARKS, char) or (
            is_late and self._parts_words(char)
        )

    def _ends_with(self, marks: tuple[str, ...], wide: tuple[str, ...], char: str) -> bool:
        """Say whether the line ends with one of the marks, closed or not, and `char` begins anew."""
        ended = self._line.rstrip(_CLOSERS)
        if ended.endswith(wide):
            return char not in _CLOSERS and char not in wide and not char.isdigit()
        if not ended.endswith(marks) or _NO_END.search(ended):
            return False
        is_narrow = bool(_IDEOGRAPH.match(ended[-2:-1]) and _IDEOGRAPH.match(char))
        return is_narrow or bool(self._held)

    def _parts_words(self, char: str) -> bool:
        """Say whether the space before `char` parts two words: not in 10 000, nor in Vietnamese."""
        if not self._held or char in _AFTER_SPACE or (char.isdigit() and self._line[-1].isdigit()):
            return False
        return not _VIETNAMESE.search(self._line)

    def _closes_block(self) -> bool:
        """Say whether the line so far closes the code block that is open."""
        found = _FENCE.match(self._line)
        is_same = bool(self._fence) and found is not None and found[1].startswith(self._fence)
        return is_same and found is not None and not self._line[found.end() :].strip()

    def _step(self, char: str) -> None:
        """Follow lines, and the code blocks that they open and close."""
        if char != "\n":
            self._line += char
            self._is_code ^= char == "`"
            return
        if self._closes_block():
            self._fence = ""
        elif not self._fence and (found := _FENCE.match(self._line)) is not None:
            self._fence = found[1]
        self._line, self._is_code = "", False


def _is_space(char: str) -> bool:
    """Say whether a space parts what is before and after it, in its line."""
    return char == _ZERO_WIDTH_SPACE or (char.isspace() and char != "\n" and char not in _BINDERS)
