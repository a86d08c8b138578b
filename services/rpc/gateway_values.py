"""What a gateway says to schedulers and workers and hears from them, without any protobuf.

Knows domain values only; the links turn them into messages. Tokens are not here: they pass as plain lists.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.domain.capacity import Capacity
from services.domain.degradation import Step
from services.domain.errors import ServeError
from services.domain.generation import (
    Band,
    FinishReason,
    Limits,
    RequestClass,
    SamplingParams,
    StopParams,
    Usage,
)
from services.domain.ids import BlockHash, Epoch, RequestKey, TenantId, WorkerId
from services.domain.miss_reason import MissReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """A model that can be called now, as the scheduler tells."""

    name: str
    revision: str
    num_workers: int
    capacity: Capacity
    """Of the largest of its workers."""
    steps: Mapping[Band, Step] = field(default_factory=dict)
    """How far its bands have degraded for all of their tenants; absent: not at all."""
    batch_wait_s: float = 0.0
    """How long arrivals of bands that have not degraded are gathered to be placed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """One request for a place."""

    key: RequestKey
    tenant: TenantId
    band: Band
    request_class: RequestClass
    model: str
    num_prompt_tokens: int
    max_output_tokens: int
    num_choices: int
    block_hashes: Sequence[BlockHash]
    """Empty on cache opt-out."""
    limits: Limits
    """Relative to `asked_at`."""
    asked_at: float
    """Monotonic seconds at which waiting began; of the first attempt also for later ones."""
    avoid: tuple[tuple[WorkerId, Epoch], ...] = ()
    """Boots of workers that failed it."""
    prompt_digest: bytes = b""
    """Names its tenant's prompt to this model, as `services.domain.prompt_digest` does."""
    own_salt: bool = False
    cache_opt_out: bool = False
    traceparent: str = ""
    weight: float = 1.0
    """The tenant's share relative to others'."""
    band_asked: str | None = None
    """The band and the class that the caller asked for: what is left of them may change with the tenant."""
    class_asked: RequestClass | None = None
    budget_step: Step = Step.NONE
    """How far the tenant's spent budgets alone let it degrade."""


class TenantTerms(Protocol):
    """What tenants' terms are at the moment."""

    def applied(self, one: Acquisition) -> Acquisition:
        """Return a request under the terms of now: another band, class or weight, or the same."""

    def weights(self, told: Mapping[TenantId, float]) -> Mapping[TenantId, float]:
        """Return the weights of tenants with something live, and of who weighs other than was `told`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A place on a worker, to be answered by Submit or Abandon."""

    key: RequestKey
    band: Band
    """In which it waited last."""
    worker: WorkerId
    epoch: Epoch
    address: str
    term: int
    seq: int
    cached_tokens: int
    miss_reason: MissReason
    first_miss_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Everything a worker needs to serve a request, but for the placement."""

    tenant: TenantId
    band: Band
    num_choices: int
    prompt_ids: Sequence[int]
    block_hashes: Sequence[BlockHash]
    salt: bytes
    sampling: SamplingParams
    stop: StopParams
    limits: Limits
    """What is left of them at the moment of submitting."""
    cache_opt_out: bool = False
    num_prompt_logprobs: int | None = None
    """None: the prompt is not scored; otherwise alternatives of each of its tokens."""
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """What a worker says of a request that is over."""

    usage: Usage = field(default_factory=Usage)
    computed_tokens: int = 0
    page_seconds: float = 0.0
    peak_pages: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    preemptions: int = 0
    failure: ServeError | None = None
    """None: every choice ended well."""


LastWord = Callable[[EndReport | None], None]
"""Given what a worker says of a request that it was told to let go of; None: it will say nothing."""


class PlacementSink(Protocol):
    """Who waits for a place. Called on the event loop; must not block or raise."""

    def on_queued(self, position: int, expected_wait_s: float | None) -> None: ...
    def on_placed(self, placement: Placement) -> None:
        """Submit now, or abandon."""

    def on_rejected(self, error: ServeError) -> None: ...


Tops = Sequence[tuple[tuple[int, float], ...]]
"""Per token its alternatives: (id, logprob), most likely first."""


class TokenSink(Protocol):
    """Who gets a request's tokens. Called on the event loop; must not block or raise."""

    def on_accepted(self) -> None: ...
    def on_started(self, cached_tokens: int) -> None: ...
    def on_prompt_scored(self, first_position: int, logprobs: Sequence[float], tops: Tops) -> None:
        """Scores of the prompt's tokens from `first_position` on; `tops` is parallel to `logprobs`."""

    def on_tokens(
        self,
        choice: int,
        first_position: int,
        token_ids: list[int],
        logprobs: list[float] | None,
        tops: Tops | None,
    ) -> None: ...
    def on_preempted(self) -> None: ...
    def on_choice_ended(self, choice: int, reason: FinishReason, output_tokens: int) -> None: ...
    def on_refused(self, error: ServeError) -> None:
        """The worker did not take the request; nothing more comes."""

    def on_ended(self, report: EndReport) -> None:
        """The last word of the worker."""

    def on_lost(self, error: ServeError) -> None:
        """The worker is gone; nothing more comes."""
