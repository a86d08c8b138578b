"""What a caller asked for, as the use case takes it from every door (gRPC and HTTP).

Knows nothing of protobuf or JSON. Absent values are None: defaults are applied by `validation`, once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.domain.generation import Limits, RequestClass
from services.domain.ids import TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One message of a conversation."""

    role: str
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """The caller's own choices; None where it made none."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One call. Exactly one of `prompt`, `token_ids` and `chat` is given."""

    model: str
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    chat: tuple[ChatTurn, ...] | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    num_choices: int | None = None
    max_output_tokens: int | None = None
    min_output_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    num_logprobs: int | None = None
    return_token_ids: bool = False
    echo: bool = False
    """Give the prompt back; with `num_logprobs`, log-probabilities of its tokens too."""
    band: str | None = None
    request_class: RequestClass | None = None
    limits: Limits = field(default_factory=Limits)
    cut_left: bool = False
    """Cut a prompt that is too long from the left instead of refusing it."""
    client_label: str = ""
    idempotency_key: str = ""
    cache_opt_out: bool = False
    cache_salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, by credential only."""

    tenant: TenantId
    key_id: str
    """Public name of the key used; empty on loopback without one."""
