"""One choice of a request between worker and caller: takes tokens, gives deltas and one end.

Text is made only when it is taken, so tokens that arrive between two sends cost one delta. Knows nothing of
who sends what when.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from gateway.core.detokenizer import Detokenizer, StopMatched, Text
from gateway.core.events import Delta, Finished
from gateway.core.output_cap import OutputCap
from services.domain.generation import FinishReason

Tops = Sequence[tuple[tuple[int, float], ...]]


class Gap(Exception):
    """Tokens are missing between two deliveries: the stream cannot be trusted any more."""


class Choice:
    """State of one choice. `num_tokens` counts what the caller pays for: up to the stop that ended it.

    Args:
        cap: Ends it early with a sentence; None where its output is not capped.
    """

    __slots__ = ("_cap", "_ended", "_ids", "_logprobs", "_received", "_text", "_tops", "finished", "index")

    def __init__(self, index: int, text: Detokenizer, cap: OutputCap | None = None) -> None:
        self.index = index
        self._text = text
        self._cap = cap
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

    def take(self, on_ended_here: Callable[[int, FinishReason], None]) -> list[Delta | Finished]:
        """Return what is new for the caller.

        Args:
            on_ended_here: Called with the choice's index when a stop string or its cap ended it here.
        """
        if self.finished is not None or (not self._ids and self._ended is None):
            return []
        events: list[Delta | Finished] = []
        ids, logprobs, tops = self._ids, self._logprobs, self._tops
        if ids:
            self._ids, self._logprobs, self._tops = [], [], []
            if self._cap is None:
                self._add(events, self._text.feed(ids, logprobs or None, tops or None))
            else:
                self._feed_capped(self._cap, events, ids, logprobs, tops)
            if self.finished is not None:
                on_ended_here(self.index, self.finished.reason)
                return _joined(events)
        if self._ended is not None:
            reason, num_tokens = self._ended
            self._add(events, self._text.flush())
            if self.finished is None:
                if self._cap is not None:
                    is_cut = reason in (FinishReason.LENGTH, FinishReason.BUDGET)
                    self._add(events, Text(self._cap.finish(is_cut=is_cut)))
                self._finish(events, reason, None, num_tokens)
        return _joined(events)

    def _feed_capped(
        self,
        cap: OutputCap,
        events: list[Delta | Finished],
        ids: list[int],
        logprobs: list[float],
        tops: list[tuple[tuple[int, float], ...]],
    ) -> None:
        """Take tokens one by one, so that what ends the answer does not depend on how they came.

        Records go out with their tokens, at most one word before the text that is held back.
        """
        for at in range(len(ids)):
            one = slice(at, at + 1)
            given = self._text.feed(ids[one], logprobs[one] or None, tops[one] or None)
            shown = cap.feed(given.text, self._text.num_tokens)
            if isinstance(given, StopMatched):
                shown += cap.finish(is_cut=False)
            self._add(events, dataclasses.replace(given, text=shown))
            if cap.is_over and self.finished is None:
                self._finish(events, FinishReason.LENGTH, None, self._text.num_tokens)
            if self.finished is not None:
                return

    def _add(self, events: list[Delta | Finished], given: Text | StopMatched) -> None:
        """Add what the text gave; a stop string ends the choice."""
        if given.text or given.tokens:
            events.append(Delta(self.index, given.text, given.tokens))
        if isinstance(given, StopMatched):
            self._finish(events, FinishReason.STOP_STRING, given.stop_string, given.num_tokens)

    def _finish(
        self, events: list[Delta | Finished], reason: FinishReason, stop_string: str | None, num_tokens: int
    ) -> None:
        self.finished = Finished(self.index, reason, stop_string, num_tokens)
        events.append(self.finished)


def _joined(events: list[Delta | Finished]) -> list[Delta | Finished]:
    """Join the deltas, which come before an end, into one message."""
    deltas = [event for event in events if isinstance(event, Delta)]
    if len(deltas) < 2:
        return events
    text = "".join(delta.text for delta in deltas)
    tokens = tuple(itertools.chain.from_iterable(delta.tokens for delta in deltas))
    return [Delta(deltas[0].choice, text, tokens), *events[len(deltas) :]]
