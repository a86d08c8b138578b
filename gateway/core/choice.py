"""One choice of a request between worker and caller: takes tokens, gives deltas and one end.

Text is made only when it is taken, so tokens that arrive between two sends cost one delta. Knows nothing of
who sends what when.
"""

from collections.abc import Callable, Sequence

from gateway.core.detokenizer import Detokenizer, StopMatched, Text
from gateway.core.events import Delta, Finished
from services.domain.generation import FinishReason

Tops = Sequence[tuple[tuple[int, float], ...]]


class Gap(Exception):
    """Tokens are missing between two deliveries: the stream cannot be trusted any more."""


class Choice:
    """State of one choice. `num_tokens` counts what the caller pays for: up to the stop that ended it."""

    __slots__ = ("_ended", "_ids", "_logprobs", "_received", "_text", "_tops", "finished", "index")

    def __init__(self, index: int, text: Detokenizer) -> None:
        self.index = index
        self._text = text
        self._received = 0
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._tops: list[tuple[tuple[int, float], ...]] = []
        self._ended: tuple[FinishReason, int] | None = None
        self.finished: Finished | None = None
        """Set when the end was given out."""

    @property
    def num_tokens(self) -> int:
        """Tokens received that count; after a stop string, those up to it."""
        return self.finished.output_tokens if self.finished is not None else self._received

    @property
    def is_over(self) -> bool:
        """Whether its end is known, given out or not."""
        return self.finished is not None or self._ended is not None

    def arrive(
        self,
        first_position: int,
        token_ids: list[int],
        logprobs: list[float] | None,
        tops: Tops | None,
    ) -> int:
        """Take tokens of positions from `first_position` on; return how many are new and wanted.

        Positions that are already here are dropped, and everything after the end.

        Raises:
            Gap: Positions are missing.
        """
        if self.is_over:
            return 0
        skip = self._received - first_position
        if skip < 0:
            raise Gap(f"expected position {self._received}, got {first_position}")
        if skip:
            token_ids = token_ids[skip:]
            logprobs = None if logprobs is None else logprobs[skip:]
            tops = None if tops is None else tops[skip:]
        self._received += len(token_ids)
        self._ids += token_ids
        if logprobs is not None:
            self._logprobs += logprobs
            self._tops += tops if tops is not None else [()] * len(token_ids)
        return len(token_ids)

    def end(self, reason: FinishReason) -> None:
        """The choice has ended with the tokens that are here: the worker says so, or it was stopped here."""
        if self._ended is None:
            self._ended = (reason, self._received)

    def take(self, on_stop_string: Callable[[int], None]) -> list[Delta | Finished]:
        """Return what is new for the caller.

        Args:
            on_stop_string: Called with the choice's index when a stop string ended it here.
        """
        if self.finished is not None or (not self._ids and self._ended is None):
            return []
        events: list[Delta | Finished] = []
        ids, logprobs, tops = self._ids, self._logprobs, self._tops
        if ids:
            self._ids, self._logprobs, self._tops = [], [], []
            given = self._text.feed(ids, logprobs or None, tops or None)
            if self._add(events, given):
                on_stop_string(self.index)
                return events
        if self._ended is not None and not self._add(events, self._text.flush()):
            self.finished = Finished(self.index, self._ended[0], None, self._ended[1])
            events.append(self.finished)
        return _joined(events)

    def _add(self, events: list[Delta | Finished], given: Text | StopMatched) -> bool:
        """Add what the text gave; True when a stop string ended the choice."""
        if given.text or given.tokens:
            events.append(Delta(self.index, given.text, given.tokens))
        if not isinstance(given, StopMatched):
            return False
        self.finished = Finished(self.index, FinishReason.STOP_STRING, given.stop_string, given.num_tokens)
        events.append(self.finished)
        return True


def _joined(events: list[Delta | Finished]) -> list[Delta | Finished]:
    """Join two deltas in front into one message."""
    if len(events) >= 2 and isinstance(events[0], Delta) and isinstance(events[1], Delta):
        first, second = events[0], events[1]
        events[:2] = [Delta(first.choice, first.text + second.text, first.tokens + second.tokens)]
    return events
