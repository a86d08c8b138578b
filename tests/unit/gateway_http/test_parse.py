"""OpenAI bodies become requests, or errors that name the field."""

from typing import Any

import pytest

from gateway.http.parse import parse_chat, parse_completion
from services.domain.errors import InvalidField

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_a_prompt_may_be_text_ids_or_a_list_of_either() -> None:
    def requests(prompt: Any) -> list[tuple[str | None, tuple[int, ...] | None]]:
        call = parse_completion({"model": "m", "prompt": prompt})
        return [(each.prompt, each.token_ids) for each in call.requests]

    assert requests("a") == [("a", None)]
    assert requests([1, 2]) == [(None, (1, 2))]
    assert requests(["a", "b"]) == [("a", None), ("b", None)]
    assert requests([[1], [2, 3]]) == [(None, (1,)), (None, (2, 3))]


@pytest.mark.failure("B081")
def test_zero_is_not_absent() -> None:
    call = parse_completion(
        {"model": "m", "prompt": "a", "logprobs": 0, "temperature": 0, "seed": 0, "max_tokens": 0}
    )
    (request,) = call.requests
    assert call.logprobs
    assert request.num_logprobs == 0
    assert request.sampling.temperature == 0.0
    assert request.sampling.seed == 0
    assert request.max_output_tokens == 0


def test_null_is_absent() -> None:
    (request,) = parse_chat({**CHAT, "temperature": None, "stop": None, "seed": None}).requests
    assert request.sampling.temperature is None
    assert request.stop == ()
    assert request.sampling.seed is None


def test_unknown_fields_are_ignored_and_named() -> None:
    assert parse_chat({**CHAT, "store": True, "zebra": 1}).ignored == ("store", "zebra")


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": "3"}, "n"),
        ({"n": True}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": [1, 2]}, "stop"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"seed": 2**64}, "seed"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_a_wrong_field_is_refused_by_name(extra: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as refused:
        parse_chat({**CHAT, **extra})
    assert refused.value.detail.field == field


@pytest.mark.failure("B181")
@pytest.mark.parametrize("url", ["http://169.254.169.254/", "file:///etc/passwd"])
def test_an_image_is_refused_without_being_fetched(url: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(InvalidField, match="only parts of the type text"):
        parse_chat({"model": "m", "messages": [{"role": "user", "content": parts}]})


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (request,) = parse_chat({"model": "m", "messages": [{"role": "user", "content": parts}]}).requests
    assert request.chat is not None
    assert request.chat[0].content == "a\nb"


def test_an_error_never_repeats_text_of_the_caller() -> None:
    with pytest.raises(InvalidField) as refused:
        parse_chat({**CHAT, "temperature": "secret words"})
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    ("field", "harmless"),
    [("tools", []), ("echo", False), ("modalities", ["text"]), ("best_of", None), ("prompt_logprobs", None)],
)
def test_the_harmless_value_of_a_field_that_is_not_served_passes(field: str, harmless: Any) -> None:
    assert parse_chat({**CHAT, field: harmless}).ignored == ()


@pytest.mark.parametrize(
    "field",
    [
        "guided_json", "use_beam_search", "prompt_logprobs", "suffix", "bad_words", "best_of", "tools",
        "return_token_ids", "detokenize", "add_special_tokens", "function_call",
    ],
)  # fmt: skip
def test_a_known_field_that_would_change_the_answer_is_refused_by_name(field: str) -> None:
    with pytest.raises(InvalidField, match="is not supported here") as refused:
        parse_completion({"model": "m", "prompt": "x", field: ["any"]})
    assert refused.value.detail.field == field


@pytest.mark.parametrize(("field", "given"), [("best_of", True), ("use_beam_search", 0), ("detokenize", 1)])
def test_a_number_is_not_taken_for_the_harmless_truth_value_nor_that_for_a_number(
    field: str, given: Any
) -> None:
    with pytest.raises(InvalidField, match="is not supported here") as refused:
        parse_completion({"model": "m", "prompt": "x", field: given})
    assert refused.value.detail.field == field


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_completions_are_text_only_too(kind: str) -> None:
    with pytest.raises(InvalidField, match=f"must be of the type text, got '{kind}'") as refused:
        parse_completion({"model": "m", "prompt": "x", "response_format": {"type": kind}})
    assert refused.value.detail.field == "response_format"


def test_best_of_may_say_what_n_says() -> None:
    assert parse_completion({"model": "m", "prompt": "x", "n": 2, "best_of": 2}).num_choices == 2


def test_unknown_fields_of_messages_and_parts_are_named_and_null_is_absent() -> None:
    parts = [{"type": "text", "text": "a", "cache_control": {}}]
    messages = [{"role": "user", "content": parts, "weight": 1, "refusal": None}]
    assert parse_chat({"model": "m", "messages": messages}).ignored == (
        "messages[0].content[0].cache_control",
        "messages[0].weight",
    )
