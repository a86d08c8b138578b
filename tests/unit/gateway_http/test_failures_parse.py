"""Known failures of OpenAI bodies: parameters that are dropped, null that is not absence."""

import dataclasses
from typing import Any

import pytest

from gateway.core.request import GenerationRequest, SamplingOptions
from gateway.http.parse import Call, parse_chat, parse_completion

OPTIONS: dict[str, tuple[Any, str, Any]] = {
    "n": (3, "num_choices", 3),
    "min_tokens": (5, "min_output_tokens", 5),
    "stop": ("x", "stop", ("x",)),
    "stop_token_ids": ([7], "stop_token_ids", (7,)),
    "ignore_eos": (True, "ignore_eos", True),
    "include_stop_str_in_output": (True, "include_stop", True),
    "cache_salt": ("s", "cache_salt", "s"),
    "user": ("u", "client_label", "u"),
    "max_tokens": (9, "max_output_tokens", 9),
}
SAMPLING: dict[str, tuple[Any, Any]] = {
    "temperature": (0, 0.0),
    "top_p": (0.5, 0.5),
    "top_k": (4, 4),
    "min_p": (0.25, 0.25),
    "repetition_penalty": (1.5, 1.5),
    "presence_penalty": (-2, -2.0),
    "frequency_penalty": (2, 2.0),
    "logit_bias": ({"5": -100}, {5: -100.0}),
    "seed": (-1, 2**64 - 1),
}


def parsed(endpoint: str, **fields: Any) -> Call:
    if endpoint == "chat":
        return parse_chat({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})
    return parse_completion({"model": "m", "prompt": "hi", **fields})


def changed(one: object, other: object, names: list[str]) -> set[str]:
    return {name for name in names if getattr(one, name) != getattr(other, name)}


@pytest.mark.failure("B095")
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_every_documented_parameter_changes_its_own_field_and_no_other(endpoint: str) -> None:
    names = [field.name for field in dataclasses.fields(GenerationRequest)]
    options = [field.name for field in dataclasses.fields(SamplingOptions)]
    assert SAMPLING.keys() == set(options)
    plain = parsed(endpoint).requests[0]
    for name, (value, field, meaning) in OPTIONS.items():
        call = parsed(endpoint, **{name: value})
        assert changed(call.requests[0], plain, names) == {field}
        assert getattr(call.requests[0], field) == meaning
        assert call.ignored == ()
    for name, (value, meaning) in SAMPLING.items():
        call = parsed(endpoint, **{name: value})
        assert changed(call.requests[0], plain, names) == {"sampling"}
        assert changed(call.requests[0].sampling, plain.sampling, options) == {name}
        assert getattr(call.requests[0].sampling, name) == meaning
        assert call.ignored == ()


@pytest.mark.failure("B081")
@pytest.mark.failure("B093")
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_null_is_absence_for_every_parameter(endpoint: str) -> None:
    plain = parsed(endpoint)
    for name in [*OPTIONS, *SAMPLING, "logprobs", "stream", "stream_options"]:
        assert parsed(endpoint, **{name: None}) == plain, name
