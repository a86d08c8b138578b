"""OpenAI request bodies -> `GenerationRequest`. Ranges and defaults are `core.validation`'s.

Source: OpenAI's API reference for completions and chat completions; vLLM's extra sampling fields.
"""

from dataclasses import dataclass
from typing import Any

from gateway.core.request import ChatTurn, GenerationRequest, SamplingOptions
from gateway.http.fields import Fields, as_integer
from services.domain.errors import InvalidField

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's documented default of `max_tokens` on /v1/completions."""
MAX_PROMPTS = 64
"""Prompts in one completions call."""

_NOT_SERVED_CHAT: dict[str, Any] = {
    "tools": [], "tool_choice": "none", "functions": [], "function_call": "none", "audio": None,
    "modalities": ["text"], "prediction": None, "web_search_options": None, "reasoning_effort": None,
}  # fmt: skip
_NOT_SERVED_COMPLETIONS: dict[str, Any] = {"echo": False, "suffix": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP call: one request per prompt, in order."""

    requests: tuple[GenerationRequest, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    ignored: tuple[str, ...]
    """Fields of the body that nothing here knows."""

    @property
    def num_choices(self) -> int:
        """Choices of each prompt."""
        return self.requests[0].num_choices or 1


def parse_completion(body: Any) -> Call:
    """Read the body of /v1/completions."""
    fields = _fields(body)
    fields.refuse(_NOT_SERVED_COMPLETIONS)
    best_of = fields.integer("best_of")
    if best_of is not None and best_of != (fields.integer("n") or 1):
        raise InvalidField("best_of", "only the value of n is supported")
    num_logprobs = fields.integer("logprobs")
    max_tokens = fields.integer("max_tokens")
    common = _common(fields) | {
        "max_output_tokens": DEFAULT_COMPLETION_TOKENS if max_tokens is None else max_tokens,
        "num_logprobs": num_logprobs,
    }
    prompts = _prompts(fields.raw("prompt"))
    requests = tuple(GenerationRequest(**common, **prompt) for prompt in prompts)
    return _call(fields, requests, logprobs=num_logprobs is not None)


def parse_chat(body: Any) -> Call:
    """Read the body of /v1/chat/completions."""
    fields = _fields(body)
    fields.refuse(_NOT_SERVED_CHAT)
    response_format = fields.object("response_format")
    if response_format is not None and response_format.string("type") != "text":
        raise InvalidField("response_format", "only the type text is supported here")
    logprobs = fields.boolean("logprobs") or False
    alternatives = fields.integer("top_logprobs")
    if alternatives is not None and not logprobs:
        raise InvalidField("top_logprobs", "needs logprobs to be true")
    newest, older = fields.integer("max_completion_tokens"), fields.integer("max_tokens")
    request = GenerationRequest(
        **_common(fields),
        chat=_messages(fields.raw("messages")),
        max_output_tokens=older if newest is None else newest,
        num_logprobs=(alternatives or 0) if logprobs else None,
    )
    return _call(fields, (request,), logprobs=logprobs)


def _fields(body: Any) -> Fields:
    if not isinstance(body, dict):
        raise InvalidField("body", "must be a JSON object")
    return Fields(body)


def _call(fields: Fields, requests: tuple[GenerationRequest, ...], *, logprobs: bool) -> Call:
    stream = fields.boolean("stream") or False
    options = fields.object("stream_options")
    if options is not None and not stream:
        raise InvalidField("stream_options", "needs stream to be true")
    include_usage = bool(options and options.boolean("include_usage"))
    ignored = fields.ignored() + (options.ignored() if options else [])
    return Call(
        requests=requests,
        stream=stream,
        include_usage=include_usage,
        logprobs=logprobs,
        ignored=tuple(ignored),
    )


def _common(fields: Fields) -> dict[str, Any]:
    model = fields.string("model")
    if not model:
        raise InvalidField("model", "is required")
    return {
        "model": model,
        "num_choices": fields.integer("n"),
        "sampling": SamplingOptions(
            temperature=fields.number("temperature"),
            top_p=fields.number("top_p"),
            top_k=_top_k(fields),
            min_p=fields.number("min_p"),
            repetition_penalty=fields.number("repetition_penalty"),
            presence_penalty=fields.number("presence_penalty"),
            frequency_penalty=fields.number("frequency_penalty"),
            logit_bias=_logit_bias(fields),
            seed=_seed(fields),
        ),
        "min_output_tokens": fields.integer("min_tokens"),
        "stop": _stop(fields.raw("stop")),
        "stop_token_ids": fields.integers("stop_token_ids"),
        "ignore_eos": fields.boolean("ignore_eos") or False,
        "client_label": (fields.string("user") or "")[:64],
    }


def _top_k(fields: Fields) -> int | None:
    """vLLM's clients say -1 for off; ours is 0."""
    value = fields.integer("top_k")
    return 0 if value == -1 else value


def _seed(fields: Fields) -> int | None:
    """OpenAI's seeds are signed 64-bit numbers; ours are the same bits."""
    value = fields.integer("seed")
    if value is not None and not -(2**63) <= value < 2**64:
        raise InvalidField("seed", f"must be a 64-bit number, got {value}")
    return None if value is None else value % 2**64


def _logit_bias(fields: Fields) -> dict[int, float]:
    biases = fields.object("logit_bias")
    if biases is None:
        return {}
    result = {}
    for key in biases.names():
        value = biases.number(key)
        if not key.isdecimal() or value is None:
            raise InvalidField("logit_bias", "maps token ids to numbers")
        result[int(key)] = value
    return result


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise InvalidField("stop", "must be a string or a list of strings")
    return tuple(entries)


def _prompts(value: Any) -> list[dict[str, Any]]:
    """A text, ids, or a list of either; each becomes the fields of one request."""
    if isinstance(value, str):
        return [{"prompt": value}]
    if not isinstance(value, list) or not value:
        raise InvalidField("prompt", "must be a text, token ids, or a non-empty list of either")
    if not isinstance(value[0], (str, list)):
        return [{"token_ids": tuple(as_integer(v, f"prompt[{i}]") for i, v in enumerate(value))}]
    if len(value) > MAX_PROMPTS:
        raise InvalidField("prompt", f"at most {MAX_PROMPTS} prompts, got {len(value)}")
    prompts: list[dict[str, Any]] = []
    for i, entry in enumerate(value):
        if isinstance(entry, str):
            prompts.append({"prompt": entry})
        elif isinstance(entry, list):
            ids = tuple(as_integer(v, f"prompt[{i}][{j}]") for j, v in enumerate(entry))
            prompts.append({"token_ids": ids})
        else:
            raise InvalidField(f"prompt[{i}]", "must be a text or a list of token ids")
    return prompts


def _messages(value: Any) -> tuple[ChatTurn, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidField("messages", "must be a non-empty list")
    turns = []
    for i, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise InvalidField(f"messages[{i}]", "must be an object")
        message = Fields(entry, f"messages[{i}].")
        message.refuse({"tool_calls": [], "function_call": None, "audio": None})
        role = message.string("role")
        if not role:
            raise message.wrong("role", "is required")
        content = _content(message.raw("content"), f"messages[{i}].content")
        turns.append(ChatTurn(role=role, content=content, name=message.string("name")))
    return tuple(turns)


def _content(value: Any, field: str) -> str:
    """A text, or text parts joined by line breaks. Nothing is ever fetched for a client."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise InvalidField(field, "must be a text or a non-empty list of text parts")
    texts = []
    for i, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise InvalidField(f"{field}[{i}]", "only parts of the type text are supported here")
        texts.append(part["text"])
    return "\n".join(texts)
