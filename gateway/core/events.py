"""What a generation tells its caller, in order: the use case yields these to every door.

queued* → started → echo? → (delta | finished)* → receipt. Every other end is a raised `ServeError`.
Knows nothing of protobuf, SSE or JSON.
"""

from dataclasses import dataclass

from services.domain.degradation import Degraded
from services.domain.generation import FinishReason, Usage
from services.domain.ids import RequestId
from services.domain.miss_reason import MissReason


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; `expected_wait_s` is None while nothing is known."""

    request_id: RequestId
    position: int
    expected_wait_s: float | None


@dataclass(frozen=True, slots=True)
class StillWaiting:
    """Sign of life before the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A worker took it."""

    request_id: RequestId
    model: str
    model_revision: str
    prompt_tokens: int
    cached_tokens: int
    seed: int
    cut_tokens: int
    degraded: tuple[Degraded, ...] = ()
    """What it gets less of than it asked for, because the service is overloaded or a soft budget is spent."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One token through the whole pipeline: id, bytes, logprob and alternatives are one object."""

    token_id: int
    token_bytes: bytes
    logprob: float | None = None
    top: tuple[tuple[int, bytes, float], ...] = ()
    """(id, bytes, logprob), most likely first."""


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt, where it was asked for."""

    text: str
    tokens: tuple[TokenRecord, ...]
    """Empty unless ids or logprobs were asked for. The first one follows nothing and has no logprob."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Text of one choice since its last delta, and the tokens whose text is now out."""

    choice: int
    text: str
    tokens: tuple[TokenRecord, ...]
    """Empty unless ids or logprobs were asked for."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One choice ended well."""

    choice: int
    reason: FinishReason
    stop_string: str | None
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What the request cost; always the last event."""

    request_id: RequestId
    usage: Usage
    queue_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float
    tpot_s: float
    preemptions: int
    page_seconds: float
    worker: str
    attempts: int
    miss_reason: MissReason
    first_miss_token: int
    computed_tokens: int
    client_label: str
    exact: bool
    degraded: tuple[Degraded, ...] = ()
    """As in `Started`."""
    cost_nanos: int | None = None
    """Billionths of the unit that the tenant's prices are in; None without prices."""


Event = Queued | StillWaiting | Started | Echo | Delta | Finished | Receipt
