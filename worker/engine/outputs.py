"""What the engine says after each step: one `StepOutputs`, read by the async side and never changed.

Knows nothing of connections: everything is addressed by the handle of its `Submit`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.domain.errors import ServeError
from services.domain.generation import FinishReason, Usage
from services.domain.ids import RequestKey, TenantId
from services.domain.slices import SlicesInForce
from worker.engine.batch import TopLogprobs
from worker.engine.kv_events import KvEvent
from worker.engine.step_tokens import StepTokens


@dataclass(frozen=True, slots=True)
class Accepted:
    """The engine holds the request now (also: a Submit attached to it)."""

    handle: int
    key: RequestKey


@dataclass(frozen=True, slots=True)
class Started:
    """The request has its seat and pages for the first time; prefill begins."""

    handle: int
    key: RequestKey
    cached_tokens: int
    """Prompt tokens found in the cache, by its first choice."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The Submit was not taken; nothing is held for it."""

    handle: int
    key: RequestKey
    error: ServeError


@dataclass(frozen=True, slots=True)
class Preempted:
    """One sequence of the request lost its pages and will be computed again."""

    handle: int


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Log-probabilities of further tokens of the prompt, for a request that asked for them."""

    handle: int
    first_position: int
    """Place in the prompt of the first one, from 1: what comes first follows nothing."""
    logprobs: Sequence[float]
    """Raw, one for each token."""
    tops: Sequence[TopLogprobs]
    """Parallel to `logprobs`; empty where no alternatives were asked for."""


@dataclass(frozen=True, slots=True)
class ChoiceEnded:
    """The choice gives no more tokens."""

    handle: int
    choice: int
    reason: FinishReason
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The request is over and holds nothing. Exactly one for every Submit that was not refused."""

    handle: int
    key: RequestKey
    tenant: TenantId
    usage: Usage
    computed_tokens: int
    """Tokens run through the model here, recomputed ones included: what fairness charges."""
    page_seconds: float
    peak_pages: int
    queue_s: float
    """Seconds until its first start; all of its life when it never started."""
    prefill_s: float
    """Seconds from its first start to its first token."""
    decode_s: float
    """Seconds from its first token to its end."""
    preemptions: int
    cancelled: bool = False
    """Ended by Cancel: nobody listens."""
    error: ServeError | None = None
    """None when every choice ended by itself, or when cancelled."""


Event = Accepted | Started | Refused | Preempted | PromptScored | ChoiceEnded | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """What a tenant has used since this worker started; only grows."""

    uncached_tokens: int = 0
    """Prompt tokens computed; what a preemption made us compute again is not the tenant's to pay."""
    cached_tokens: int = 0
    """Prompt tokens found in the cache at first starts."""
    output_tokens: int = 0
    page_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """Numbers of one step, and gauges as they stood when it ended."""

    step: int
    """Counts iterations of the loop that did anything, from 1."""
    step_s: float
    """Seconds in the executor; 0 when nothing was computed."""
    num_rows: int
    """Sequences in the batch."""
    num_prefill_tokens: int
    num_decode_tokens: int
    waiting: int
    """Sequences without a seat (never started, or preempted)."""
    running: int
    """Sequences with a seat."""
    states: Mapping[str, int]
    """Live sequences by state; the sum is `waiting + running`."""
    live_requests: int
    waiting_tokens: int
    """Tokens of waiting sequences that are not computed."""
    oldest_waiting_s: float
    free_pages: int
    cached_pages: int
    held_pages: int
    preemptions: int
    allocation_failures: int
    """Times in this step that somebody could not get pages."""
    transitions: Mapping[str, int]
    """Page transitions in this step, by the state entered (plus `reused` and `evicted`)."""
    prefix_tokens: Mapping[str, int]
    """Prompt tokens at first starts of this step, `hit` or `miss`; `resumed` counts hits after preemption."""
    unknown_cancels: int
    granted: int
    """Cumulative requests this worker has agreed to take: those taken + free seats, never falling."""
    taken: int
    """Cumulative Submits that were not attachments."""
    startable_pages: int
    """Pages a new request could have now."""
    draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutputs:
    """All that came of one step: its tokens, then its events in the order in which they happened.

    For each handle Accepted comes first, and no token comes in a step after its ChoiceEnded or Ended.
    """

    tokens: StepTokens = field(default_factory=StepTokens)
    events: tuple[Event, ...] = ()
    kv_events: tuple[KvEvent, ...] = ()
    """In order. Inside one step no block is removed after it was stored, so a receiver may take every Removed
    first and then every Stored."""
    started: tuple[RequestKey, ...] = ()
    """First started in this step (the scheduler's Report)."""
    ended: tuple[Ended | Refused, ...] = ()
    """The same objects as in `events` (the scheduler's Report)."""
    tenant_use: Mapping[TenantId, TenantUse] = field(default_factory=dict)
    """Cumulative use of the tenants whose use changed in this step."""
    tenant_pages: Mapping[TenantId, int] = field(default_factory=dict)
    """Pages held now by each tenant for whom that changed in this step."""
    slices: SlicesInForce | None = None
    """What is kept to of the tenants' slices and what they need, when that has changed."""
    stats: StepStats
