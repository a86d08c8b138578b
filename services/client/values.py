"""What the client hands to its callers: events of a stream, answers of the unary calls, inputs.

Plain frozen values; knows nothing of protobuf, of channels or of how a stream is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.domain.degradation import Degraded
from services.domain.errors import ServeError
from services.domain.generation import FinishReason, Usage
from services.domain.miss_reason import MissReason


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat. `role` is system, user, assistant or tool."""

    role: str
    content: str
    name: str | None = None
    """Name of the speaker, where the model's template uses it."""


Input = str | Sequence[int] | Sequence[Message]
"""A prompt's text, its token ids, or chat messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The request waits; sent again when its position changes notably."""

    request_id: str
    position: int
    """Requests that will probably be served before it."""
    expected_wait_s: float | None
    """None when nothing is known yet."""


@dataclass(frozen=True, slots=True)
class StillWaiting:
    """Sign of life before the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The request runs; sent once, before the first delta."""

    request_id: str
    model: str
    model_revision: str
    """Digest of the weights that serve it."""
    prompt_tokens: int
    cached_tokens: int
    seed: int
    cut_tokens: int
    """Tokens cut from the left of the prompt; of one that is far too long, at least so many."""
    degraded: tuple[Degraded, ...] = ()
    """What it gets less of than it asked for, because the service is overloaded."""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative to a chosen token."""

    token_id: int
    token: bytes
    """The token's own bytes; may be part of a character."""
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A chosen token, its raw log-probability and the likeliest alternatives."""

    token_id: int
    token: bytes
    logprob: float
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """The prompt, where `echo` was asked for; sent once, before the first delta."""

    text: str
    token_ids: tuple[int, ...] = ()
    """Filled where `return_token_ids` was asked for."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Filled where `logprobs` was asked for. The first token follows nothing: its log-probability is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one choice gained since its last delta."""

    choice: int
    text: str
    token_ids: tuple[int, ...] = ()
    """Filled where `return_token_ids` was asked for."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Filled where `logprobs` was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One choice ended well."""

    choice: int
    reason: FinishReason
    stop_string: str | None
    """The stop string that matched, if one did."""
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What the request cost; the last event of every stream that succeeds."""

    request_id: str
    usage: Usage
    computed_tokens: int
    """Tokens really computed, which fairness charges."""
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float
    """From arrival at the gateway to the first token."""
    tpot_ms: float
    """Mean time per output token after the first, over the longest choice."""
    preemptions: int
    page_seconds: float
    worker: str
    attempts: int
    miss_reason: MissReason
    """Why the prompt was not wholly served from the cache."""
    first_miss_token: int
    client_label: str
    exact: bool
    """The answer is bit for bit what one worker alone would have given."""
    degraded: tuple[Degraded, ...] = ()
    """As in `Started`."""
    cost_nanos: int | None = None
    """Billionths of the unit that the tenant's prices are in; None without prices."""


Event = Queued | StillWaiting | Started | Echo | Delta | Finished | Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One finished choice of a completion."""

    text: str
    reason: FinishReason
    stop_string: str | None
    output_tokens: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A stream read to its end."""

    choices: tuple[Choice, ...]
    echo: Echo | None
    """The prompt, where `echo` was asked for."""
    started: Started
    receipt: Receipt

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def message(self) -> Message:
        """The first choice as the assistant's message, to append to a chat."""
        return Message("assistant", self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that can be called now."""

    name: str
    revision: str
    max_context_tokens: int
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A prompt as the model would read it."""

    ids: tuple[int, ...]
    token_bytes: tuple[bytes, ...] = field(default=())
    """Parallel to `ids`, where asked for."""
    max_context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The request is being served."""

    worker: str
    attempt: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended without a receipt."""

    error: ServeError


RequestState = Queued | Running | Receipt | Failed
"""What became of a request."""
