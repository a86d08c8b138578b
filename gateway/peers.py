"""The scheduler and the workers, as far as one live request sees them, and what they may call it back with.

Interfaces only: the links that fulfil them are in `services.rpc`.
"""

from typing import Protocol

from services.domain.generation import FinishReason
from services.domain.ids import RequestKey
from services.rpc.gateway_values import Acquisition, LastWord, Placement, PlacementSink, Submission, TokenSink


class Scheduler(Protocol):
    """Gives places."""

    def acquire(self, acquisition: Acquisition, sink: PlacementSink) -> None: ...
    def abandon(self, key: RequestKey, seq: int | None = None) -> None: ...


class WorkerHold(Protocol):
    """A submitted request's hold on its worker."""

    def cancel(self, on_last_word: LastWord) -> None: ...
    def finish_choice(self, choice: int, reason: FinishReason) -> None: ...


class Workers(Protocol):
    """Take what was placed on them."""

    def submit(self, placement: Placement, submission: Submission, sink: TokenSink) -> WorkerHold: ...


class Sink(PlacementSink, TokenSink, Protocol):
    """Who hears of a request's places and tokens."""
