"""What a live request needs of scheduler and workers, and what it brings to them.

Interfaces and values only.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.core.choice import Choice
from gateway.core.prompt_echo import PromptEcho
from services.domain.degradation import Degraded
from services.domain.generation import FinishReason
from services.domain.ids import RequestKey
from services.rpc.gateway_values import Acquisition, Placement, PlacementSink, Submission, TokenSink


class Hold(Protocol):
    """A submitted request's hold on its worker."""

    def cancel(self) -> None: ...
    def finish_choice(self, choice: int, reason: FinishReason) -> None: ...


class Places(Protocol):
    """The scheduler, as far as a request sees it."""

    def acquire(self, acquisition: Acquisition, sink: PlacementSink) -> None: ...
    def abandon(self, key: RequestKey, seq: int | None = None) -> None: ...


class Workers(Protocol):
    """The workers, as far as a request sees them."""

    def submit(self, placement: Placement, submission: Submission, sink: TokenSink) -> Hold: ...


class Sink(PlacementSink, TokenSink, Protocol):
    """Who hears of a request's places and tokens."""


class Phase(StrEnum):
    """Where a request is; each has its gauge."""

    PREPARING = "preparing"
    WAITING = "waiting"
    PLACED = "placed"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything resolved about a request before it asks for a place."""

    acquisition: Acquisition
    submission: Submission
    echo: PromptEcho | None
    """Where the prompt is to be given back."""
    choices: list[Choice]
    model: str
    revision: str
    cut_tokens: int
    degraded: tuple[Degraded, ...]
    """What it gets less of than it asked for."""
