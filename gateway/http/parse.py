"""OpenAI request bodies -> `GenerationRequest`. Ranges and defaults are `core.validation`'s.

Source: OpenAI's API reference for completions and chat completions; vLLM's extra sampling fields.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core.request import GenerationRequest, SamplingOptions
from gateway.http.fields import Fields, kind_of
from gateway.http.inputs import read_messages, read_prompts
from services.domain.document_values import refused
from services.domain.errors import InvalidField

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's documented default of `max_tokens` on /v1/completions."""
MAX_ID_DIGITS = 10
"""Digits of a token id."""

_NOT_SERVED: dict[str, Any] = {
    "best_of": None, "use_beam_search": False, "length_penalty": 1.0, "early_stopping": False,
    "guided_json": None, "guided_regex": None, "guided_choice": None, "guided_grammar": None,
    "structured_outputs": None, "prompt_logprobs": None, "allowed_token_ids": None, "bad_words": [],
    "logits_processors": [], "truncate_prompt_tokens": None,
    "return_tokens_as_token_ids": False, "return_token_ids": False, "skip_special_tokens": True,
    "detokenize": True, "tools": [], "tool_choice": "none", "functions": [], "function_call": "none",
}  # fmt: skip
"""Known fields that would change the answer, and the value that changes nothing."""
_NOT_SERVED_CHAT: dict[str, Any] = _NOT_SERVED | {
    "audio": None, "modalities": ["text"], "add_special_tokens": False, "prediction": None,
    "web_search_options": None, "reasoning_effort": None, "verbosity": None, "documents": [],
    "chat_template": None, "chat_template_kwargs": {}, "add_generation_prompt": True,
    "continue_final_message": False, "echo": False,
}  # fmt: skip
_NOT_SERVED_COMPLETIONS: dict[str, Any] = _NOT_SERVED | {"suffix": None, "add_special_tokens": True}

_NAMES = {
    "max_output_tokens": "max_tokens", "min_output_tokens": "min_tokens", "token_ids": "prompt",
    "chat.messages": "messages", "chat": "messages", "client_label": "user",
    "idempotency_key": "Idempotency-Key",
}  # fmt: skip
"""What the use case calls otherwise than the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP call: one request per prompt, in order."""

    requests: tuple[GenerationRequest, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    ignored: tuple[str, ...]
    """Fields of the body that nothing here knows."""
    names: Mapping[str, str]
    """Names in the use case -> names in the body."""

    @property
    def num_choices(self) -> int:
        """Choices of each prompt."""
        return self.requests[0].num_choices or 1


def parse_completion(body: Any) -> Call:
    """Read the body of /v1/completions."""
    fields = _fields(body)
    fields.refuse(_NOT_SERVED_COMPLETIONS | {"best_of": fields.integer("n") or 1})
    _refuse_formats(fields)
    num_logprobs = fields.integer("logprobs")
    max_tokens = fields.integer("max_tokens")
    common = _common(fields) | {
        "max_output_tokens": DEFAULT_COMPLETION_TOKENS if max_tokens is None else max_tokens,
        "num_logprobs": num_logprobs,
        "echo": fields.boolean("echo") or False,
    }
    prompts = read_prompts(fields.raw("prompt"))
    requests = tuple(GenerationRequest(**common, **prompt) for prompt in prompts)
    return _call(fields, requests, _NAMES, logprobs=num_logprobs is not None)


def parse_chat(body: Any) -> Call:
    """Read the body of /v1/chat/completions."""
    fields = _fields(body)
    fields.refuse(_NOT_SERVED_CHAT)
    _refuse_formats(fields)
    logprobs = fields.boolean("logprobs") or False
    alternatives = fields.integer("top_logprobs")
    if alternatives is not None and not logprobs:
        raise refused("top_logprobs", "absent unless logprobs is true", alternatives, None)
    newest, older = fields.integer("max_completion_tokens"), fields.integer("max_tokens")
    turns, ignored = read_messages(fields.raw("messages"))
    request = GenerationRequest(
        **_common(fields),
        chat=turns,
        max_output_tokens=older if newest is None else newest,
        num_logprobs=(alternatives or 0) if logprobs else None,
    )
    names = _NAMES | {"logprobs": "top_logprobs"}
    if newest is not None:
        names["max_output_tokens"] = "max_completion_tokens"
    return _call(fields, (request,), names, logprobs=logprobs, ignored=ignored)


def with_key(call: Call, key: str) -> Call:
    """Return a call under the key that its header gave; prompts after the first have keys of their own."""
    if not key:
        return call
    keys = [key, *(_digest_of(key, index) for index in range(1, len(call.requests)))]
    requests = (
        dataclasses.replace(one, idempotency_key=its) for one, its in zip(call.requests, keys, strict=True)
    )
    return dataclasses.replace(call, requests=tuple(requests))


def _digest_of(key: str, index: int) -> str:
    """Return the key of a later prompt: as long for any key, and nobody's own."""
    return hashlib.sha256(f"{index} {key}".encode()).hexdigest()


def _refuse_formats(fields: Fields) -> None:
    response_format = fields.object("response_format")
    kind = "text" if response_format is None else response_format.string("type")
    if kind != "text":
        raise refused("response_format", "of the type text", kind, "text")


def _fields(body: Any) -> Fields:
    if not isinstance(body, dict):
        raise InvalidField("body", f"must be a JSON object, got {kind_of(body)}")
    return Fields(body)


def _call(
    fields: Fields,
    requests: tuple[GenerationRequest, ...],
    names: Mapping[str, str],
    *,
    logprobs: bool,
    ignored: Sequence[str] = (),
) -> Call:
    stream = fields.boolean("stream") or False
    options = fields.object("stream_options")
    if options is not None and not stream:
        raise InvalidField("stream_options", "must be absent unless stream is true, got an object")
    include_usage = bool(options and options.boolean("include_usage"))
    unknown = [*fields.ignored(), *ignored, *(options.ignored() if options else [])]
    return Call(
        requests=requests,
        stream=stream,
        include_usage=include_usage,
        logprobs=logprobs,
        ignored=tuple(unknown),
        names=names,
    )


def _common(fields: Fields) -> dict[str, Any]:
    model = fields.string("model")
    if not model:
        raise InvalidField("model", f"must be the name of a model, got {kind_of(model)}")
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
        "include_stop": fields.boolean("include_stop_str_in_output") or False,
        "cache_salt": fields.string("cache_salt") or "",
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
        if not (key.isascii() and key.isdecimal() and len(key) <= MAX_ID_DIGITS) or value is None:
            raise refused("logit_bias", "token ids mapped to numbers", {key: value}, None)
        result[int(key)] = value
    return result


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    entries = value if isinstance(value, list) else [value]
    for entry in entries:
        if not isinstance(entry, str):
            raise InvalidField("stop", f"must be a string or a list of strings, got {kind_of(entry)}")
    return tuple(entries)
