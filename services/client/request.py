"""Build request messages from plain arguments.

Checks only that a value can be sent at all; ranges are the gateway's to refuse, by field name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack, cast

from google.protobuf.message import Message as ProtoMessage

from protos.gateway.v1 import gateway_pb2
from services.client.values import Input, Message
from services.domain.errors import InvalidField
from services.domain.generation import RequestClass


class Options(TypedDict, total=False):
    """What a generation may ask for besides its model and input. Absent or None: the model's defaults."""

    temperature: float | None
    """0 (greedy) to 2."""
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    """Token id -> -100 to 100."""
    seed: int | None
    n: int | None
    """Choices, 1 to 16."""
    max_output_tokens: int | None
    min_output_tokens: int | None
    stop: Sequence[str] | None
    """At most 16 strings."""
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    include_stop: bool | None
    logprobs: int | None
    """0: of chosen tokens only; up to 20 alternatives."""
    return_token_ids: bool | None
    echo: bool | None
    """Give the prompt back first; with `logprobs`, those of its tokens too. Then 0 output tokens will do."""
    band: str | None
    """By name; the tenant's own band is the best it can get."""
    request_class: RequestClass | None
    queue_limit_s: float | None
    """Seconds until the request must have left the queue."""
    first_token_limit_s: float | None
    total_limit_s: float | None
    cut_long_prompt: bool | None
    """Cut a prompt that is too long from the left, keeping the system message, instead of refusing it."""
    client_label: str | None
    idempotency_key: str | None
    """The same key within 10 minutes is never charged twice."""
    cache_opt_out: bool | None
    cache_salt: str | None
    """Prefixes are shared only between requests of the same salt."""


_SAMPLING = frozenset(gateway_pb2.SamplingOptions.DESCRIPTOR.fields_by_name)
_LIMITS_MS = {
    "queue_limit_s": "queue_ms",
    "first_token_limit_s": "first_token_ms",
    "total_limit_s": "total_ms",
}


def generate_request(model: str, prompt: Input, **options: Unpack[Options]) -> gateway_pb2.GenerateRequest:
    """Build a generation request.

    Raises:
        InvalidField: The input or an option has a type or a size that the wire cannot carry.
        TypeError: An option does not exist.
    """
    request = gateway_pb2.GenerateRequest(model=model)
    match _kind(prompt):
        case "text":
            request.prompt = cast(str, prompt)
        case "chat":
            request.chat.CopyFrom(chat_messages(cast(Sequence[Message], prompt)))
        case "ids":
            request.token_ids.SetInParent()
            _assign(request.token_ids, "token_ids", "ids", prompt)
    for name, value in options.items():
        if name not in Options.__annotations__:
            raise TypeError(f"unknown generation option {name!r}")
        if value is not None:
            _set_option(request, name, value)
    return request


def tokenize_request(
    model: str, prompt: str | Sequence[Message], return_bytes: bool
) -> gateway_pb2.TokenizeRequest:
    """Build a tokenize request.

    Raises:
        InvalidField: The input is neither text nor chat messages.
    """
    request = gateway_pb2.TokenizeRequest(model=model, return_bytes=return_bytes)
    match _kind(prompt):
        case "text":
            request.text = cast(str, prompt)
        case "chat":
            request.chat.CopyFrom(chat_messages(cast(Sequence[Message], prompt)))
        case "ids":
            raise InvalidField("input", "token ids are already tokens; give text or chat messages")
    return request


def chat_messages(messages: Sequence[Message]) -> gateway_pb2.ChatMessages:
    return gateway_pb2.ChatMessages(
        messages=[
            gateway_pb2.ChatMessage(role=message.role, content=message.content, name=message.name)
            for message in messages
        ]
    )


def _kind(prompt: Input) -> str:
    if isinstance(prompt, str):
        return "text"
    if prompt and all(isinstance(item, Message) for item in prompt):
        return "chat"
    if all(isinstance(item, int) for item in prompt):
        return "ids"
    raise InvalidField("input", "must be text, token ids or chat messages")


def _set_option(request: gateway_pb2.GenerateRequest, name: str, value: Any) -> None:
    if name in _SAMPLING:
        _assign(request.sampling, "sampling", name, value)
    elif name in _LIMITS_MS:
        _assign(request.limits, "limits", _LIMITS_MS[name], max(1, round(value * 1000)))
    elif name == "band":
        _assign(request, "", "band_name", value)
    elif name == "cut_long_prompt":
        request.long_prompt = gateway_pb2.LONG_PROMPT_CUT_LEFT if value else gateway_pb2.LONG_PROMPT_REFUSE
    else:
        _assign(request, "", name, value)


def _assign(message: ProtoMessage, parent: str, name: str, value: Any) -> None:
    """Set a scalar, extend a list or fill a map; name the field that cannot hold the value."""
    try:
        if isinstance(value, Mapping):
            getattr(message, name).update(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError, AttributeError) as exc:
        raise InvalidField(f"{parent}.{name}".lstrip("."), f"cannot be sent: {exc}") from exc
