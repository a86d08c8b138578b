"""The interface of queue policies: who is next, and what fairness is told of the work.

A policy orders what waits; it does not know workers' credits or time limits. Bands are strict in every
policy, but for what it reserves. What it may weigh is in its data: band, class, model, tenant and its weight,
and the cached prefix (`WaitingRequest.match`) of the requests it offers.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from scheduler.core.request import Acquire, PromptUse, WaitingRequest
from services.domain.generation import Band, RequestClass
from services.domain.ids import RequestKey, TenantId, WorkerId


class QueuePolicy(Protocol):
    """Holds the waiting requests of all models and says in which order to try them."""

    def add(self, request: WaitingRequest) -> None:
        """Take a request in."""

    def remove(self, request: WaitingRequest) -> None:
        """Forget a request that leaves without being placed."""

    def placed(self, request: WaitingRequest, worker: WorkerId, cached_tokens: int) -> None:
        """Forget a request that was placed; fairness charges its prompt here, as predicted."""

    def candidates(
        self, model: str, *, closed: Collection[RequestClass] = (), held: Collection[TenantId] | None = None
    ) -> Iterator[WaitingRequest]:
        """Yield what waits for `model`, next first. Valid until the next change.

        Args:
            closed: Classes of which nothing can be placed now.
            held: Tenants of whom nothing can be placed now; they hold up nobody. None: this is but a look.
        """

    def models(self) -> Iterable[str]:
        """Return the models that something waits for."""

    def num_waiting(self, model: str, lowest: Band | None = None) -> int:
        """Return how many requests of `model` wait in `lowest` and the bands before it; None: in all."""

    def num_tokens(self, model: str, lowest: Band | None = None) -> int:
        """Return the prompt tokens of those requests."""

    def waiting_of_tenant(self, acquire: Acquire) -> tuple[int, int]:
        """Return how many requests of its tenant wait beside `acquire`, and their prompt tokens, as far as
        the policy bounds tenants one by one; (0, 0) where it does not."""

    def position(self, request: WaitingRequest) -> int:
        """Estimate the turn of a request that came in last, from 1. O(1)."""

    def weigh(self, tenant: TenantId, weight: float) -> None:
        """Let a tenant's weight be this from now on, also for what of it waits or is served already."""

    # What became of what was placed

    def used(self, worker: WorkerId, tenant: TenantId, num_output_tokens: int) -> None:
        """A tenant's requests on a worker gave further tokens."""

    def ended(self, key: RequestKey, use: PromptUse | None) -> None:
        """A placed request ended; None where what its prompt took is not known."""

    def given_back(self, key: RequestKey) -> None:
        """A placement came to nothing."""

    def worker_gone(self, worker: WorkerId, kept: Collection[RequestKey]) -> None:
        """Nothing more will be heard of what was placed there, but for the keys `kept`."""

    def over_share(self, worker: WorkerId) -> Mapping[TenantId, float]:
        """Return how far the tenants with requests on a worker are over their share; > 0 is over it."""

    def asks_within_share(self, tenant: TenantId, model: str, band: Band) -> bool:
        """Say whether a tenant would be within its share of a band if all were served that it waits for."""

    def owed_class(self, model: str) -> RequestClass | None:
        """Return the class of which a tenant is further behind all of the other one than fairness lets it be,
        in the first band that waits."""

    def is_owed(self, request: WaitingRequest) -> bool:
        """Say whether those of the other class must wait for a request that finds no room now: its tenant is
        not over its share, and further behind all of theirs than fairness lets it be."""

    def floor(self, band: Band) -> float:
        """Return the part of a model's service that is reserved for a band."""


class NoAccounts:
    """The part of a policy that charges nobody."""

    def waiting_of_tenant(self, acquire: Acquire) -> tuple[int, int]:
        return 0, 0

    def weigh(self, tenant: TenantId, weight: float) -> None: ...

    def used(self, worker: WorkerId, tenant: TenantId, num_output_tokens: int) -> None: ...

    def ended(self, key: RequestKey, use: PromptUse | None) -> None: ...

    def given_back(self, key: RequestKey) -> None: ...

    def worker_gone(self, worker: WorkerId, kept: Collection[RequestKey]) -> None: ...

    def over_share(self, worker: WorkerId) -> Mapping[TenantId, float]:
        return {}

    def asks_within_share(self, tenant: TenantId, model: str, band: Band) -> bool:
        return False

    def owed_class(self, model: str) -> RequestClass | None:
        return None

    def is_owed(self, request: WaitingRequest) -> bool:
        return False

    def floor(self, band: Band) -> float:
        return 0.0
