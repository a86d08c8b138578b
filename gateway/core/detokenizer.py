"""Makes text of tokens, in one place: append-only, exact at stop strings, one record per token.

Unary answers, streams, SSE and resumed streams all read from here, so they all give the same text.
Knows bytes of tokens and stop strings; knows nothing of requests, of transport or of when to send.
"""

import codecs
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.core.events import TokenRecord


@dataclass(frozen=True, slots=True)
class Text:
    """What may be shown now: text, and the records of the tokens whose text is out with it."""

    text: str
    tokens: tuple[TokenRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class StopMatched:
    """A stop string ended the choice: its last text, and how many tokens it took in all."""

    stop_string: str
    text: str
    tokens: tuple[TokenRecord, ...]
    num_tokens: int
    """Tokens of the choice up to and with the one that completed the stop string."""


NOTHING = Text("")


class StopStrings:
    """Finds stop strings in a growing text, and how much of its end must be held back.

    The match that ends first wins, as if the text came one character at a time; of two that end at the
    same place the longer one. So the result does not depend on how tokens were grouped.
    """

    __slots__ = ("_prefixes_by_last", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        prefixes: dict[str, set[str]] = {}
        for stop in self._stops:
            for length in range(1, len(stop)):
                prefixes.setdefault(stop[length - 1], set()).add(stop[:length])
        self._prefixes_by_last = {
            last: tuple(sorted(group, key=len, reverse=True)) for last, group in prefixes.items()
        }

    def __bool__(self) -> bool:
        return bool(self._stops)

    def find(self, text: str) -> tuple[int, str] | None:
        """Return (start, stop string) of the match that ends first, or None."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                if best is None or candidate < best:
                    best = candidate
        return None if best is None else (best[1], best[2])

    def held_back(self, text: str) -> int:
        """Return the length of the longest end of `text` that is a proper prefix of some stop string."""
        if text:
            for prefix in self._prefixes_by_last.get(text[-1], ()):
                if text.endswith(prefix):
                    return len(prefix)
        return 0


class Detokenizer:
    """Text of one choice.

    Joined output equals the full decode (bytes joined, UTF-8, invalid bytes as U+FFFD), cut at the first
    stop string. Characters whose bytes are incomplete, and text that may become a stop string, are held.

    Args:
        token_bytes: Bytes of a token id; empty for control tokens.
        stops: Stop strings, none of them empty.
        include_stop: Leave the stop string, or the text of a stop id, in the output.
        stop_token_ids: Ids that end the choice; their own text is not shown unless `include_stop`.
        keep_records: Build a record for each token (ids or logprobs were asked for).
    """

    __slots__ = (
        "_decode", "_held", "_include_stop", "_keep_records", "_num_chars", "_num_shown", "_pending",
        "_state", "_stop_token_ids", "_stops", "_token_bytes", "num_tokens",
    )  # fmt: skip

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        stop_token_ids: frozenset[int] = frozenset(),
        keep_records: bool = False,
    ) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decode, self._state = decoder.decode, decoder.getstate
        self._token_bytes = token_bytes
        self._stops = StopStrings(stops)
        self._include_stop = include_stop
        self._stop_token_ids = stop_token_ids
        self._keep_records = keep_records
        self._held = ""
        self._num_chars = 0
        self._num_shown = 0
        self._pending: deque[tuple[int, TokenRecord]] = deque()
        self.num_tokens = 0
        """Tokens taken so far."""

    def feed(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float] | None = None,
        tops: Sequence[tuple[tuple[int, float], ...]] | None = None,
    ) -> Text | StopMatched:
        """Take further tokens and return what may be shown now.

        `logprobs` and `tops` are parallel to `token_ids`. After a `StopMatched` nothing more may be fed.
        """
        if not self._keep_records and not self._stops:
            self.num_tokens += len(token_ids)
            text = self._decode(b"".join([self._shown_bytes(token_id) for token_id in token_ids]))
            return Text(text) if text else NOTHING
        shown: list[str] = []
        for index, token_id in enumerate(token_ids):
            text = self._decode(self._shown_bytes(token_id))
            self.num_tokens += 1
            self._num_chars += len(text)
            if self._keep_records:
                self._record(
                    token_id,
                    logprobs[index] if logprobs is not None else None,
                    tops[index] if tops is not None else (),
                )
            matched = self._match(shown, text)
            if matched is not None:
                return matched
        return self._release(shown)

    def flush(self) -> Text | StopMatched:
        """End the choice: give out what was held, incomplete bytes as U+FFFD."""
        shown: list[str] = []
        text = self._decode(b"", True)
        self._num_chars += len(text)
        matched = self._match(shown, text)
        if matched is not None:
            return matched
        shown.append(self._held)
        self._held = ""
        return Text("".join(shown), self._all_records())

    def _shown_bytes(self, token_id: int) -> bytes:
        if token_id in self._stop_token_ids and not self._include_stop:
            return b""
        return self._token_bytes(token_id)

    def _record(self, token_id: int, logprob: float | None, top: tuple[tuple[int, float], ...]) -> None:
        record = TokenRecord(
            token_id,
            self._token_bytes(token_id),
            logprob,
            tuple((other, self._token_bytes(other), value) for other, value in top),
        )
        # A token that leaves a character incomplete is out only with that character.
        needs = self._num_chars + (1 if self._state()[0] else 0)
        self._pending.append((needs, record))

    def _match(self, shown: list[str], text: str) -> StopMatched | None:
        """Move what is safe from held + `text` to `shown`; return the end if a stop string matched."""
        if not self._stops:
            shown.append(text)
            self._num_shown += len(text)
            return None
        if not text:
            return None
        held = self._held + text
        found = self._stops.find(held)
        if found is not None:
            start, stop = found
            shown.append(held[: start + len(stop)] if self._include_stop else held[:start])
            self._held = ""
            return StopMatched(stop, "".join(shown), self._all_records(), self.num_tokens)
        cut = len(held) - self._stops.held_back(held)
        shown.append(held[:cut])
        self._num_shown += cut
        self._held = held[cut:]
        return None

    def _release(self, shown: list[str]) -> Text:
        records: list[TokenRecord] = []
        while self._pending and self._pending[0][0] <= self._num_shown:
            records.append(self._pending.popleft()[1])
        text = "".join(shown)
        return Text(text, tuple(records)) if text or records else NOTHING

    def _all_records(self) -> tuple[TokenRecord, ...]:
        records = tuple(record for _, record in self._pending)
        self._pending.clear()
        return records
