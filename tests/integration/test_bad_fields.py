"""Every field of both doors with a bad value: the refusal says its name, its range and what was given.

A field that is added to the contract without a bad value here fails the test.
"""

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from gateway.http.parse import parse_chat, parse_completion
from protos.gateway.v1 import gateway_pb2 as pb
from protos.types.v1 import types_pb2
from services.domain.errors import InvalidField, UnknownModel
from tests.fakes.gateway_rig import failure_of
from tests.fakes.http_rig import HttpRig, http_rig, names_read

BODY: dict[str, Any] = {"model": "m", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
ROLES = "one of system, user, assistant, tool"
BANDS = "one of interactive, standard, batch"
MODEL_BYTES = "must be at most 2048 bytes for this model"
PATHS = {"/v1/completions": parse_completion, "/v1/chat/completions": parse_chat}


def sampling(**fields: Any) -> dict[str, Any]:
    return {"sampling": pb.SamplingOptions(**fields)}


def limits(**fields: Any) -> dict[str, Any]:
    return {"limits": types_pb2.Limits(**fields)}


def chat(**fields: Any) -> dict[str, Any]:
    return {"chat": pb.ChatMessages(messages=[pb.ChatMessage(**({"role": "user", "content": "x"} | fields))])}


FACTOR = "above 0 (2^-30 at least)"

OVER_GRPC: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model: must be the name of a model, got an empty string"),
    ({"prompt": ""}, "prompt: must hold at least 1 character, got 0"),
    ({"prompt": "x" * 2049}, f"prompt: {MODEL_BYTES}, got 2049"),
    ({"token_ids": pb.TokenIds()}, "token_ids: must hold at least 1 id, got 0"),
    ({"token_ids": pb.TokenIds(ids=[1, 260])}, "token_ids: must be ids of 0 to 259, got 260"),
    ({"chat": pb.ChatMessages()}, "chat.messages: must be 1 to 1024 messages, got 0"),
    (chat(role="usr"), f"chat.messages[0].role: must be {ROLES}, got 'usr'; nearest valid: user"),
    (chat(name=""), "chat.messages[0].name: must be 1 to 64 characters long, got 0"),
    (chat(content="x" * 3000), f"chat.messages[0].content: {MODEL_BYTES}, got 3000"),
    (sampling(temperature=2.5), "sampling.temperature: must be 0 to 2, got 2.5"),
    (sampling(temperature=math.nan), "sampling.temperature: must be 0 to 2, got nan"),
    (sampling(top_p=1.5), f"sampling.top_p: must be {FACTOR} to 1, got 1.5"),
    (sampling(top_p=1e-30), f"sampling.top_p: must be {FACTOR} to 1, got 1.0000000031710769e-30"),
    (sampling(top_k=261), "sampling.top_k: must be 0 to 260, got 261"),
    (sampling(min_p=-1), "sampling.min_p: must be 0 to 1, got -1.0"),
    (sampling(repetition_penalty=11), f"sampling.repetition_penalty: must be {FACTOR} to 10, got 11.0"),
    (sampling(presence_penalty=-3), "sampling.presence_penalty: must be -2 to 2, got -3.0"),
    (sampling(frequency_penalty=math.inf), "sampling.frequency_penalty: must be -2 to 2, got inf"),
    (sampling(logit_bias={7: 101}), "sampling.logit_bias[7]: must be -100 to 100, got 101.0"),
    (sampling(logit_bias={260: 1}), "sampling.logit_bias: must be ids of 0 to 259, got 260"),
    (
        sampling(logit_bias=dict.fromkeys(range(1025), 0)),
        "sampling.logit_bias: must have at most 1024 entries, got 1025",
    ),
    ({"n": 0}, "n: must be 1 to 16, got 0"),
    ({"n": 17}, "n: must be 1 to 16, got 17"),
    ({"max_output_tokens": 0}, "max_output_tokens: must be 1 to 2048, got 0"),
    ({"max_output_tokens": 2**32 - 1}, "max_output_tokens: must be 1 to 2048, got 4294967295"),
    ({"min_output_tokens": 2049}, "min_output_tokens: must be 0 to 2048, got 2049"),
    ({"min_output_tokens": 9, "max_output_tokens": 8}, "min_output_tokens: must be 0 to 8, got 9"),
    ({"stop": ["x"] * 17}, "stop: must have at most 16 entries, got 17"),
    ({"stop": ["x", "y" * 257]}, "stop[1]: must be 1 to 256 characters long, got 257"),
    ({"stop_token_ids": [260]}, "stop_token_ids: must be ids of 0 to 259, got 260"),
    ({"stop_token_ids": range(65)}, "stop_token_ids: must have at most 64 entries, got 65"),
    ({"logprobs": 21}, "logprobs: must be 0 to 20, got 21"),
    ({"band": 4}, f"band: must be {BANDS}, got 'number-4'"),
    ({"band_name": "btch"}, f"band: must be {BANDS}, got 'btch'; nearest valid: batch"),
    ({"request_class": 3}, "request_class: must be 1 to 2, got 3"),
    (limits(queue_ms=0), "limits.queue_ms: must be 1 to 86400000, got 0"),
    (limits(first_token_ms=86_400_001), "limits.first_token_ms: must be 1 to 86400000, got 86400001"),
    (limits(total_ms=0), "limits.total_ms: must be 1 to 86400000, got 0"),
    ({"long_prompt": 3}, "long_prompt: must be 1 to 2, got 3"),
    ({"client_label": "x" * 65}, "client_label: must be 0 to 64 characters long, got 65"),
    ({"idempotency_key": "x" * 129}, "idempotency_key: must be 0 to 128 characters long, got 129"),
    ({"cache_salt": "x" * 129}, "cache_salt: must be 0 to 128 characters long, got 129"),
]
ANY_VALUE = {"model", "sampling.seed"}
"""Whose bad value is the empty default, or whose every value is in range."""

HTTP: list[tuple[str, Any, str]] = [
    ("model", "", "model: must be the name of a model, got an empty string"),
    ("prompt", {}, "prompt: must be a text, token ids, or a non-empty list of either, got an empty object"),
    ("prompt", ["a", 7], "prompt[1]: must be a text or a list of token ids, got 7"),
    ("prompt", [1, 260], "prompt: must be ids of 0 to 259, got 260"),
    ("prompt", [1, "a"], "prompt[1]: must be a whole number, got a string"),
    ("messages", None, "messages: must be a non-empty list, got null"),
    ("messages", [7], "messages[0]: must be an object, got 7"),
    ("messages", [{"content": "x"}], "messages[0].role: must be given, got null"),
    ("messages", [{"role": "robot", "content": "x"}], f"messages[0].role: must be {ROLES}, got 'robot'"),
    (
        "messages",
        [{"role": "user", "content": 7}],
        "messages[0].content: must be a text or a non-empty list of text parts, got 7",
    ),
    (
        "messages",
        [{"role": "user", "content": [{"type": "image_url"}]}],
        "messages[0].content[0]: only parts of the type text are supported here, got image_url",
    ),
    ("n", 17, "n: must be 1 to 16, got 17"),
    ("n", "3", "n: must be a whole number, got a string"),
    ("temperature", 2.5, "temperature: must be 0 to 2, got 2.5"),
    ("top_p", 0, f"top_p: must be {FACTOR} to 1, got 0.0"),
    ("top_k", -2, "top_k: must be 0 to 260, got -2"),
    ("min_p", 1.5, "min_p: must be 0 to 1, got 1.5"),
    ("repetition_penalty", 0, f"repetition_penalty: must be {FACTOR} to 10, got 0.0"),
    ("presence_penalty", "x", "presence_penalty: must be a number, got a string"),
    ("frequency_penalty", -2.5, "frequency_penalty: must be -2 to 2, got -2.5"),
    ("logit_bias", {"7": 101}, "logit_bias[7]: must be -100 to 100, got 101.0"),
    ("logit_bias", {"x": 1}, "logit_bias: must be token ids mapped to numbers, got {'x': 1.0}"),
    ("seed", 2**64, "seed: must be a whole number, got 1.84467e+19"),
    ("min_tokens", -1, "min_tokens: must be 0 to 2048, got -1"),
    ("max_tokens", 2049, "max_tokens: must be 1 to 2048, got 2049"),
    ("max_completion_tokens", 0, "max_completion_tokens: must be 1 to 2048, got 0"),
    ("stop", ["x", 7], "stop: must be a string or a list of strings, got 7"),
    ("stop", [""], "stop[0]: must be 1 to 256 characters long, got 0"),
    ("stop_token_ids", [-1], "stop_token_ids: must be ids of 0 to 259, got -1"),
    ("ignore_eos", 1, "ignore_eos: must be true or false, got 1"),
    ("include_stop_str_in_output", "yes", "include_stop_str_in_output: must be true or false, got a string"),
    ("cache_salt", "x" * 129, "cache_salt: must be 0 to 128 characters long, got 129"),
    ("user", 7, "user: must be a string, got 7"),
    ("stream", "yes", "stream: must be true or false, got a string"),
    ("stream_options", {}, "stream_options: must be absent unless stream is true, got an object"),
    ("top_logprobs", 3, "top_logprobs: must be absent unless logprobs is true, got 3"),
    ("echo", 1, "echo: must be true or false, got 1"),
    (
        "response_format",
        {"type": "json_object"},
        "response_format: must be of the type text, got 'json_object'; nearest valid: text",
    ),
]
LOGPROBS: dict[str, tuple[Any, str]] = {
    "/v1/completions": (21, "logprobs: must be 0 to 20, got 21"),
    "/v1/chat/completions": (1, "logprobs: must be true or false, got 1"),
}


@pytest.fixture
async def http() -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        yield started


def ranged_fields(message: Descriptor, prefix: str = "") -> set[str]:
    """Return the names of all fields but those of two values, which have no bad one."""
    found: set[str] = set()
    for field in message.fields:
        name = f"{prefix}{field.name}"
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.type == FieldDescriptor.TYPE_BOOL:
            continue
        if field.message_type is None or is_map:
            found.add(name)
        else:
            found |= ranged_fields(field.message_type, f"{name}.")
    return found


def fields_given(message: Message, prefix: str = "") -> set[str]:
    """Return the names of the fields that a request gives, also those whose value is the default."""
    found: set[str] = set()
    for field in message.DESCRIPTOR.fields:
        name, value = f"{prefix}{field.name}", getattr(message, field.name)
        is_given = message.HasField(field.name) if field.has_presence else bool(value)
        if not is_given:
            continue
        found.add(name)
        inner = field.message_type
        if inner is not None and not inner.GetOptions().map_entry:
            for one in [value] if field.has_presence else value:
                found |= fields_given(one, f"{name}.")
    return found


@pytest.mark.failure("B091")
@pytest.mark.failure("B095")
async def test_over_grpc_every_field_is_refused_with_its_name_range_and_value(http: HttpRig) -> None:
    for request, says in OVER_GRPC:
        error = await failure_of(http.rig, **request)
        assert isinstance(error, InvalidField), request
        assert error.message == says
        assert error.detail.field == says.partition(":")[0]
    error = await failure_of(http.rig, model="nobody")
    assert isinstance(error, UnknownModel)
    assert "nobody" in error.message
    assert http.rig.worker.submits == []


def test_no_field_of_the_contract_is_left_out() -> None:
    tried = set().union(*(fields_given(pb.GenerateRequest(**request)) for request, _ in OVER_GRPC))
    assert ranged_fields(pb.GenerateRequest.DESCRIPTOR) - ANY_VALUE - tried == set()


@pytest.mark.failure("B091")
@pytest.mark.failure("B095")
@pytest.mark.parametrize("path", PATHS)
async def test_over_http_every_field_is_refused_with_its_name_and_value(http: HttpRig, path: str) -> None:
    known = names_read(PATHS[path], BODY)
    tried = [(name, *rest) for name, *rest in [*HTTP, ("logprobs", *LOGPROBS[path])] if name in known]
    not_served = known - {name for name, *_ in tried} | {"echo"} & (known if "chat" in path else set())
    for name, value, says in [case for case in tried if case[0] not in not_served]:
        answer = await http.post(path, **{name: value})
        assert answer.status_code == 400, name
        assert answer.json()["error"]["message"] == says
        assert answer.json()["error"]["param"] == says.partition(":")[0]
    for name in sorted(not_served):
        answer = await http.post(path, **{name: {"any": "value"}})
        assert answer.json()["error"]["message"] == f"{name}: is not supported here, got an object"
    assert http.rig.worker.submits == []
