"""Keeps what a user wrote apart from what a template wrote, through a rendering.

Characters of content that could take part in a control token are swapped for private code points before the
template runs, and swapped back after the rendered text has been cut at control tokens. Trimming, splitting,
measuring and comparing in the template work as ever, and yet no control token can be spelled by content, nor
by content and template together. Knows texts only, no ids and no messages.
"""

import re
from collections.abc import Iterable, Sequence

_PRIVATE = re.compile("[\U000f0000-\U0010fffd]")
_PRIVATE_STARTS = range(0xF0000, 0x10FF00, 256)
_NEVER_MARKED = '"\\'
"""JSON in a template must be able to escape these."""


class ContentMarks:
    """The marks for one model: its control tokens, and the template's own texts."""

    def __init__(self, control_tokens: Iterable[str], constants: Iterable[str]) -> None:
        """Prepare.

        Args:
            control_tokens: Texts that must not arise from content.
            constants: Texts that the template's code may look for in content, such as `</think>`. They stay
                readable to it, unless a control token could begin, end or lie in them.
        """
        self._controls = sorted(filter(None, control_tokens), key=len, reverse=True)
        alphabet = {c for text in self._controls for c in text if not c.isspace() and c not in _NEVER_MARKED}
        self._delimiters = {c for c in alphabet if not c.isalnum()}
        self._alphabet = sorted(alphabet, key=lambda c: (c.isalnum(), c))
        kept = [text for text in constants if self._delimiters.intersection(text) and self._is_harmless(text)]
        # Marking delimiters breaks every other control token; one that is a mere word is marked as a whole.
        self._words = {text for text in self._controls if not self._delimiters.intersection(text)}
        whole = sorted([*self._words, *kept], key=len, reverse=True)
        self._whole = re.compile("(" + "|".join(map(re.escape, whole)) + ")") if whole else None

    def choose(self, texts: Iterable[str]) -> "MarkTables":
        """Return tables whose private code points occur in none of `texts`."""
        taken = {ord(found) >> 8 for text in texts for found in _PRIVATE.findall(text)}
        start = next((start for start in _PRIVATE_STARTS if start >> 8 not in taken), _PRIVATE_STARTS[0])
        everything = {ord(c): chr(start + index) for index, c in enumerate(self._alphabet[:256])}
        return MarkTables(
            everything, {ord(c): everything[ord(c)] for c in self._delimiters if ord(c) in everything}
        )

    def mark(self, text: str, tables: "MarkTables") -> str:
        """Return content with its dangerous characters swapped, one for one."""
        stripped = text.strip()
        if stripped and any(stripped in control for control in self._controls):
            return text.translate(tables.everything)
        if self._whole is None:
            return text.translate(tables.delimiters)
        parts = self._whole.split(text)
        parts[::2] = [part.translate(tables.delimiters) for part in parts[::2]]
        parts[1::2] = [
            part.translate(tables.everything) if part in self._words else part for part in parts[1::2]
        ]
        return "".join(parts)

    def _is_harmless(self, text: str) -> bool:
        return not any(control in text or _may_touch(text, control) for control in self._controls)


class MarkTables:
    """Tables for `str.translate`: marking (all characters, or delimiters only) and `restore`."""

    __slots__ = ("delimiters", "everything", "restore")

    def __init__(self, everything: dict[int, str], delimiters: dict[int, str]) -> None:
        self.everything = everything
        self.delimiters = delimiters
        self.restore = {ord(mark): chr(character) for character, mark in everything.items()}


def _may_touch(text: str, control: str) -> bool:
    """Whether `text` lies in `control`, ends as `control` begins, or begins as it ends."""
    shorter: Sequence[int] = range(1, min(len(text), len(control)))
    return text in control or any(
        text.endswith(control[:size]) or control.endswith(text[:size]) for size in shorter
    )
