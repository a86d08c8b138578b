"""The interface of queue policies: who is next.

A policy orders what waits; it does not know workers, credits or time limits. Bands are strict in every
policy. What it may weigh is in its data from the start: band, class, model, tenant, and the cached prefix
(`WaitingRequest.match`) of the requests it offers.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from scheduler.core.request import WaitingRequest
from services.domain.generation import Band


class QueuePolicy(Protocol):
    """Holds the waiting requests of all models and says in which order to try them."""

    def add(self, request: WaitingRequest) -> None:
        """Take a request in."""

    def remove(self, request: WaitingRequest) -> None:
        """Forget a request that leaves without being placed."""

    def placed(self, request: WaitingRequest, cached_tokens: int) -> None:
        """Forget a request that was placed; fairness charges it here."""

    def candidates(self, model: str) -> Iterator[WaitingRequest]:
        """Yield what waits for `model`, next first. Valid until the next change."""

    def models(self) -> Iterable[str]:
        """Return the models that something waits for."""

    def num_waiting(self, model: str, lowest: Band = Band.BATCH) -> int:
        """Return how many requests of `model` wait in `lowest` and the bands before it."""

    def num_tokens(self, model: str, lowest: Band = Band.BATCH) -> int:
        """Return the prompt tokens of those requests."""
