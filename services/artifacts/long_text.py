"""Cuts a long text where no token can lie across, so that it is tokenised in parts and only so far as needed.

Knows the vocabulary's bytes; knows nothing of control tokens, chats or requests.

Why a count of parts is a lower bound: every token's bytes are bytes of the text, so where two neighbouring
characters stand side by side in no token, no token lies across and no merge ever joins what is left of them
with what is right. Each part then has the tokens it has in the whole text, but for what a splitting rule that
looks around might do close to a cut; `SLACK` tokens a cut are given away for that. A stretch without such a
place ("aaaa...") is not tokenised at all: it takes at least its bytes over those of the longest token that
is made of its characters only.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

PART_CHARS = 8192
"""Characters tokenised at a time."""
SLACK = 8
"""Tokens a cut that a count in parts may be too high by; tokens so close to a cut are never taken over."""
USUAL_CHARS = 6
"""Characters a token: a text with more of them than this times its limit is most probably too long."""
WINDOW_CHARS = 256
"""Neighbours looked at for a place to cut, before the part is made longer."""


class TooManyTokens(Exception):
    """A text has certainly more tokens than it may have."""


class LongTexts:
    """Counts and cuts texts of one vocabulary.

    Args:
        token_bytes: Bytes of every token.
        encode: Returns the tokens of a text that does not begin a sequence.
    """

    def __init__(self, token_bytes: Sequence[bytes], encode: Callable[[str], list[int]]) -> None:
        self._token_bytes = token_bytes
        self._encode = encode
        self._is_cut: dict[tuple[str, str], bool] = {}

    def is_long(self, num_chars: int, max_tokens: int) -> bool:
        """Say whether a text is worth counting before it is tokenised as a whole."""
        return num_chars > max(PART_CHARS, USUAL_CHARS * max_tokens)

    def check(self, text: str, max_tokens: int) -> None:
        """Return if `text` may have at most `max_tokens`; shorter ones are not looked at.

        Raises:
            TooManyTokens: It has more, which was clear after little more than so many.
        """
        if not self.is_long(len(text), max_tokens):
            return
        count = 0
        for part in self._parts(text):
            fewest = self._fewest(part) if len(part) > 2 * PART_CHARS else len(self._encode(part))
            count += max(0, fewest - SLACK)
            if count > max_tokens:
                raise TooManyTokens

    def tail(self, text: str, num_tokens: int) -> tuple[int, list[int]] | None:
        """Return where a part of `text` begins that holds its last `num_tokens` tokens, and its tokens.

        They are the tokens of the whole text, if it can be cut there at all. None where the whole is needed.
        """
        num_chars = USUAL_CHARS * num_tokens + WINDOW_CHARS
        while num_chars < len(text):
            place = len(text) - num_chars
            start = self._cut_after(text, place) or place
            tokens = self._encode(text[start:])
            if len(tokens) >= num_tokens + SLACK:
                return start, tokens
            num_chars *= 2
        return None

    def _parts(self, text: str) -> Iterator[str]:
        start, place = 0, PART_CHARS
        while place < len(text):
            end = self._cut_after(text, place)
            if end is None:
                place += PART_CHARS
                continue
            yield text[start:end]
            start, place = end, end + PART_CHARS
        yield text[start:]

    def _fewest(self, part: str) -> int:
        """Return a number of tokens that a stretch has at least, by its bytes; 0 where some may vanish."""
        data = part.encode()
        own = bytes(set(data))
        inside = [len(token) for token in self._token_bytes if token and not token.strip(own)]
        return len(data) // max(inside) if inside.count(1) == len(own) else 0

    def _cut_after(self, text: str, place: int) -> int | None:
        """Return the first place from `place` on where the text can be cut, if one is near."""
        for index in range(place, min(place + WINDOW_CHARS, len(text))):
            pair = text[index - 1], text[index]
            can_cut = self._is_cut.get(pair)
            if can_cut is None:
                can_cut = self._is_cut[pair] = not self._lie_in_a_token(*pair)
            if can_cut:
                return index
        return None

    def _lie_in_a_token(self, left: str, right: str) -> bool:
        """Say whether two characters may be neighbours inside a token."""
        whole, broken = self._spellings
        return left + right in whole or left.encode()[-1:] + right.encode()[:1] in broken

    @cached_property
    def _spellings(self) -> tuple[str, bytes]:
        """All tokens that are text, and all that begin or end within a character, each in one string."""
        whole, broken = [], []
        for token in self._token_bytes:
            try:
                whole.append(token.decode())
            except UnicodeDecodeError:
                broken.append(token)
        return "\0".join(whole), b"\0".join(broken)
