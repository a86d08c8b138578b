"""Who is local, how errors are worded, what a header may hold, and how token records are shown."""

from typing import Any

import pytest

from gateway.core.events import Finished, TokenRecord
from gateway.http.app import header_of_names
from gateway.http.credentials import is_local, key_of
from gateway.http.errors import body_of, headers_of, status_of
from gateway.http.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from gateway.http.naming import in_words_of_body
from gateway.http.parse import parse_chat, parse_completion
from gateway.http.render import ChatRenderer, Total
from services.domain.errors import (
    BadCredential,
    Code,
    Draining,
    ErrorDetail,
    InvalidField,
    LimitExpired,
    PromptTooLong,
    QuotaExceeded,
    ServeError,
    UnknownModel,
)
from services.domain.generation import FinishReason, Usage

LOCALHOST = {"host": "localhost:8000"}


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.3.2.1"])
@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_program_of_this_machine_is_local(peer: str, host: str) -> None:
    assert is_local(peer, {"host": host})


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        ("10.0.0.7", LOCALHOST),
        ("", LOCALHOST),
        ("127.0.0.1", {}),
        ("127.0.0.1", {"host": "rebound.example:8000"}),
        ("127.0.0.1", {"host": "127.0.0.1.evil.example"}),
        ("127.0.0.1", LOCALHOST | {"origin": "http://localhost:8000"}),
        ("127.0.0.1", LOCALHOST | {"x-forwarded-for": "10.0.0.7"}),
        ("127.0.0.1", LOCALHOST | {"forwarded": "for=10.0.0.7"}),
        ("127.0.0.1", LOCALHOST | {"via": "1.1 proxy"}),
    ],
)
def test_anybody_else_is_not(peer: str, headers: dict[str, str]) -> None:
    assert not is_local(peer, headers)


def test_a_key_comes_as_bearer_or_by_its_own_header() -> None:
    assert key_of({}) is None
    assert key_of({"authorization": "Bearer  abc "}) == "abc"
    assert key_of({"x-api-key": "abc"}) == "abc"
    assert key_of({"authorization": "bearer"}) == ""
    with pytest.raises(BadCredential):
        key_of({"authorization": "Basic abc", "x-api-key": "abc"})


@pytest.mark.parametrize(
    ("error", "renamed"),
    [
        (InvalidField("sampling.top_p", "must be less"), "top_p"),
        (InvalidField("sampling.logit_bias[7]", "must be less"), "logit_bias[7]"),
        (InvalidField("max_output_tokens", "must be less"), "max_completion_tokens"),
        (InvalidField("logprobs", "must be less"), "top_logprobs"),
        (InvalidField("chat.messages[2].role", "must be one"), "messages[2].role"),
        (InvalidField("chat", "has no template"), "messages"),
        (PromptTooLong("chat.messages", "too many"), "messages"),
        (InvalidField("stop[3]", "too long"), "stop[3]"),
        (InvalidField("chatter", "unknown"), "chatter"),
    ],
)
def test_errors_speak_the_words_of_a_chat_s_body(error: ServeError, renamed: str) -> None:
    names = parse_chat(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 1}
    ).names
    told = in_words_of_body(error, names)
    assert told.detail.field == renamed
    assert told.message.startswith(f"{renamed}: ")
    assert type(told) is type(error)


def test_errors_say_which_of_several_prompts_and_that_a_model_is_unknown() -> None:
    names = parse_completion({"model": "m", "prompt": "x"}).names
    told = in_words_of_body(InvalidField("token_ids", "must be less"), names, prompt=4)
    assert told.message == "prompt[4]: must be less"
    assert in_words_of_body(InvalidField("max_output_tokens", "x"), names).detail.field == "max_tokens"
    assert in_words_of_body(UnknownModel("not here"), names).detail.field == "model"


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_status(code: Code) -> None:
    error = ServeError("x")
    error.code = code
    assert 400 <= status_of(error) <= 504


def test_usage_so_far_is_told_with_the_error() -> None:
    error = LimitExpired("late", ErrorDetail(usage=Usage(prompt_tokens=3, cached_tokens=1, output_tokens=2)))
    assert status_of(error) == 504
    assert body_of(error)["error"]["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
    }  # fmt: skip


def test_limits_and_the_time_to_come_back_are_in_the_headers() -> None:
    spent = QuotaExceeded(
        "spent",
        ErrorDetail(
            quota="tenant/acme/tokens_per_minute",
            retry_after_s=2.1,
            metadata={"need": "9", "left": "4", "limit": "60"},
        ),
    )
    assert headers_of(spent) == {
        "retry-after": "3",
        "x-ratelimit-limit-tokens": "60",
        "x-ratelimit-remaining-tokens": "4",
        "x-ratelimit-reset-tokens": "2.1s",
    }
    never = QuotaExceeded("never", ErrorDetail(quota="tenant/acme/tokens_per_minute"))
    assert headers_of(never) == {"x-should-retry": "false"}
    assert headers_of(Draining("bye")) == {"retry-after": "1", "connection": "close"}


def test_names_of_fields_cannot_write_headers_of_their_own() -> None:
    assert header_of_names(["a_b.c[0]", "x\r\nset-cookie: y", "é"]) == "a_b.c[0], x??set-cookie??y, ?"
    long = header_of_names([f"field_{number}" for number in range(1000)])
    assert len(long) < 1040
    assert long.endswith(", ...")


def record(token_id: int, data: bytes, logprob: float, *top: tuple[int, bytes, float]) -> TokenRecord:
    return TokenRecord(token_id, data, logprob, top)


@pytest.mark.failure("B079")
def test_the_chosen_token_is_among_its_alternatives_once() -> None:
    inside = record(1, b"a", -0.5, (1, b"a", -0.5), (2, b"b", -1.0))
    outside = record(3, b"c", -3.0, (1, b"a", -0.5), (2, b"b", -1.0))
    shown = chat_logprobs([inside, outside])["content"]
    assert [one["token"] for one in shown[0]["top_logprobs"]] == ["a", "b"]
    assert [one["token"] for one in shown[1]["top_logprobs"]] == ["a", "b", "c"]
    named = completion_logprobs([inside, outside], TextOffsets())["top_logprobs"]
    assert named == [{"a": -0.5, "b": -1.0}, {"a": -0.5, "b": -1.0, "c": -3.0}]


def test_pieces_of_a_character_are_named_by_their_bytes_and_begin_where_it_begins() -> None:
    pieces = [record(byte, bytes([byte]), -1.0) for byte in "é!".encode()]
    offsets = TextOffsets()
    shown = completion_logprobs([record(0, b"ab", -1.0), *pieces[:1]], offsets)
    assert (shown["tokens"], shown["text_offset"]) == (["ab", "bytes:\\xc3"], [0, 2])
    shown = completion_logprobs(pieces[1:], offsets)
    assert (shown["tokens"], shown["text_offset"]) == (["bytes:\\xa9", "!"], [2, 3])


@pytest.mark.failure("B080")
@pytest.mark.parametrize("value", [float("-inf"), float("nan"), -1e30])
def test_what_json_cannot_say_is_clamped(value: float) -> None:
    (shown,) = chat_logprobs([record(1, b"a", value, (1, b"a", value))])["content"]
    assert shown["logprob"] == shown["top_logprobs"][0]["logprob"] == -9999.0


@pytest.mark.failure("B075")
@pytest.mark.parametrize(
    ("reason", "stop", "shown"),
    [
        (FinishReason.STOP, None, ("stop", None)),
        (FinishReason.STOP_STRING, "END", ("stop", "END")),
        (FinishReason.LENGTH, None, ("length", None)),
        (FinishReason.BUDGET, None, ("length", "budget")),
    ],
)
def test_every_end_is_said_in_words_that_clients_know(
    reason: FinishReason, stop: str | None, shown: tuple[Any, Any]
) -> None:
    ending = ChatRenderer().ending(0, Finished(0, reason, stop, 3))
    assert (ending["finish_reason"], ending["stop_reason"]) == shown


def test_no_use_is_zero_and_not_absent() -> None:
    assert Total().render() == {
        "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


@pytest.mark.parametrize(("retry_after_s", "reset"), [(None, None), (2.0, "2s")])
def test_a_refusal_gives_no_other_limits_reset_as_its_own(
    retry_after_s: float | None, reset: str | None
) -> None:
    """Eight at once, where a minute's requests would be there again in a second."""
    rates = {"limit-requests": "60", "remaining-requests": "59", "reset-requests": "1s", "reset-tokens": "3s"}
    detail = ErrorDetail(
        quota="tenant/t/max_concurrency",
        retry_after_s=retry_after_s,
        metadata={"limit": "4", "left": "3"},
        rate_limits={f"x-ratelimit-{name}": value for name, value in rates.items()}
        | {"x-quire-limits": "all"},
    )
    told = headers_of(QuotaExceeded("eight at once", detail))
    assert [told.get(f"x-ratelimit-{what}-requests") for what in ("limit", "remaining", "reset")] == [
        "4",
        "3",
        reset,
    ]
    assert (told["x-ratelimit-reset-tokens"], told["x-quire-limits"]) == ("3s", "all")
