"""Gather the events of one stream into a completion.

Knows nothing of channels; the sync and the async stream share it.
"""

from dataclasses import dataclass, field

from services.client.errors import IncompleteStream
from services.client.values import (
    Choice,
    Completion,
    Delta,
    Echo,
    Event,
    Finished,
    Receipt,
    Started,
    TokenLogprob,
)


@dataclass(slots=True)
class _Part:
    """One choice as far as it has come."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None


class Transcript:
    """What a stream has said so far."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.receipt: Receipt | None = None
        self.echo: Echo | None = None
        self._parts: dict[int, _Part] = {}

    def add(self, event: Event) -> None:
        match event:
            case Delta():
                part = self._parts.setdefault(event.choice, _Part())
                part.texts.append(event.text)
                part.token_ids.extend(event.token_ids)
                part.logprobs.extend(event.logprobs)
            case Finished():
                self._parts.setdefault(event.choice, _Part()).finished = event
            case Echo():
                self.echo = event
            case Started():
                self.started = event
            case Receipt():
                self.receipt = event
            case _:
                pass

    def check_whole(self) -> None:
        """Refuse to call a stream a success that did not say everything.

        Raises:
            IncompleteStream: The receipt, the start or the end of a choice is missing.
        """
        ended = bool(self._parts) and all(part.finished for part in self._parts.values())
        if self.receipt is None or self.started is None or not ended:
            raise IncompleteStream("the stream ended without its receipt; the answer is not whole")

    def completion(self) -> Completion:
        """Return the whole answer.

        Raises:
            IncompleteStream: The stream has not said everything.
        """
        self.check_whole()
        assert self.started is not None
        assert self.receipt is not None
        choices = tuple(_choice(self._parts[index]) for index in sorted(self._parts))
        return Completion(choices=choices, echo=self.echo, started=self.started, receipt=self.receipt)


def _choice(part: _Part) -> Choice:
    assert part.finished is not None
    return Choice(
        text="".join(part.texts),
        reason=part.finished.reason,
        stop_string=part.finished.stop_string,
        output_tokens=part.finished.output_tokens,
        token_ids=tuple(part.token_ids),
        logprobs=tuple(part.logprobs),
    )
