"""All doors and shapes of an answer give the same text; every parameter that is read has an effect."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest

from gateway.http.parse import parse_chat, parse_completion
from tests.fakes.gateway_rig import generate
from tests.fakes.http_rig import HttpRig, http_rig, names_read
from tests.fakes.worker_server import says

PATHS = ("/v1/completions", "/v1/chat/completions")

STOP_CASES: list[tuple[str, list[str], str, str | None]] = [
    (" alpha zeta eta theta", [" zeta eta theta"], " alpha", " zeta eta theta"),
    ("the brown fox", ["own fox"], "the br", "own fox"),
    ("done</s and on", ["</s"], "done", "</s"),
    ("done</", ["</s>"], "done</", None),
    ("aXbYc", ["Y", "Xb"], "a", "Xb"),
    ("abab abac", ["abac"], "abab ", "abac"),
    ("日本語です", ["語"], "日本", "語"),
    ("👩‍👩‍👧 and 👍", ["👍"], "👩‍👩‍👧 and ", "👍"),
    ("né́e", ["é"], "n", "é"),
    ("stop", ["stop"], "", "stop"),
    ("plain text", [], "plain text", None),
    ("one\ntwo\n\nthree", ["\n\n"], "one\ntwo", "\n\n"),
]  # fmt: skip


@pytest.fixture
async def http() -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        yield started


async def read(http: HttpRig, path: str, *, stream: bool, **body: Any) -> list[tuple[str, str, Any]]:
    """Return (text, finish reason, stop reason) of every choice."""
    answer = await http.post(path, stream=stream, **body)
    assert answer.status_code == 200, answer.text
    if not stream:
        return [
            (one["text"] if "text" in one else one["message"]["content"], one["finish_reason"],
             one["stop_reason"])
            for one in answer.json()["choices"]
        ]  # fmt: skip
    texts: dict[int, str] = {}
    ends: dict[int, tuple[str, Any]] = {}
    for line in answer.text.splitlines():
        if not line.startswith("data: {"):
            continue
        (one,) = orjson.loads(line[6:])["choices"]
        texts.setdefault(one["index"], "")
        texts[one["index"]] += one["text"] if "text" in one else one["delta"].get("content", "")
        if one["finish_reason"] is not None:
            ends[one["index"]] = (one["finish_reason"], one["stop_reason"])
    return [(texts.get(index, ""), *ends[index]) for index in sorted(ends)]


@pytest.mark.failure("B070")
@pytest.mark.failure("B073")
@pytest.mark.parametrize(("output", "stop", "text", "matched"), STOP_CASES)
async def test_a_stop_ends_every_kind_of_answer_at_the_same_character(
    http: HttpRig, output: str, stop: list[str], text: str, matched: str | None
) -> None:
    http.rig.worker.script, http.rig.worker.step_s = says(output), 0.0005
    expected = (text, "stop" if matched else "length", matched)
    for path in PATHS:
        for stream in (False, True):
            for n in (1, 2):
                answers = await read(http, path, stream=stream, stop=stop, n=n, max_tokens=200)
                assert answers == [expected] * n, (path, stream)
    over_grpc = await generate(http.rig, stop=stop, max_output_tokens=200)
    assert over_grpc.text() == text
    assert over_grpc.of("finished")[0].stop_string == (matched or "")


BASE: dict[str, Any] = {"seed": 1, "max_tokens": 8, "temperature": 1.0}
"""What is sent beside the parameter in question."""
EXTREME: dict[str, Any] = {
    "model": "other", "n": 3, "temperature": 0, "top_p": 1e-6, "top_k": 1, "min_p": 1.0,
    "repetition_penalty": 10, "presence_penalty": 2, "frequency_penalty": -2, "logit_bias": {"104": -100},
    "seed": 2**64 - 1, "min_tokens": 8, "stop": "l", "stop_token_ids": [101], "ignore_eos": True,
    "include_stop_str_in_output": True, "cache_salt": "mine", "user": "x" * 64, "stream": True,
    "stream_options": {"include_usage": True}, "max_tokens": 1, "max_completion_tokens": 1,
    "prompt": "something else", "messages": [{"role": "system", "content": "else"}],
    "top_logprobs": 20, "echo": True, "response_format": {"type": "json_object"},
}  # fmt: skip
NEEDS: dict[str, dict[str, Any]] = {
    "include_stop_str_in_output": {"stop": "l"},
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
}
"""A parameter that means something only beside another one."""
LOGPROBS = {PATHS[0]: 20, PATHS[1]: True}
MINIMAL: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    PATHS[0]: (parse_completion, {"model": "m", "prompt": "x"}),
    PATHS[1]: (parse_chat, {"model": "m", "messages": [{"role": "user", "content": "x"}]}),
}


async def seen(http: HttpRig, path: str, **body: Any) -> tuple[Any, ...]:
    """Return everything that a parameter can change: status, answer, and what the worker was asked."""
    http.rig.worker.submits.clear()
    answer = await http.post(path, **body)
    if answer.status_code == 400:
        return (400, answer.json()["error"]["param"])
    await http.rig.settled()
    text = answer.text
    for noise in answer.headers["x-request-id"].split(", "):
        text = text.replace(noise, "id")
    created = text.partition('"created":')[2].partition(",")[0]
    text = text.replace(f'"created":{created}', '"created":0')
    submits = []
    for submit in http.rig.worker.submits:
        submit.ClearField("handle")
        submit.ClearField("key")
        submit.ClearField("seq")
        submit.ClearField("limits")
        submits.append(str(submit))
    labels = [ending.decode().partition('"client_label":')[2] for account in
              http.rig.quota._organisations.values() for ending in list(account.endings.values())[-1:]]  # type: ignore  # fmt: skip
    return (answer.status_code, without_pace(text) if body.get("stream") else text, sorted(submits), labels)


def without_pace(sse: str) -> tuple[str, list[str]]:
    """Return a stream's text and the rest of its chunks: how the text is split is a matter of time."""
    whole, rest = "", []
    for line in sse.split("\n"):
        if not line.startswith("data: "):
            continue
        chunk = line.removeprefix("data: ")
        event = {} if chunk == "[DONE]" else orjson.loads(chunk)
        for choice in event.get("choices", ()):
            holder = choice.get("delta", choice)
            whole += holder.pop("content", None) or holder.pop("text", None) or ""
        if str(event) not in rest:
            rest.append(str(event))
    return whole, rest


@pytest.mark.failure("B095")
@pytest.mark.parametrize("path", PATHS)
async def test_every_parameter_that_is_read_has_an_effect_or_is_refused_by_name(
    http: HttpRig, path: str
) -> None:
    http.rig.worker.logprob = lambda token_id: (-1.0, [(token_id, -1.0)])
    names = names_read(*MINIMAL[path])
    assert {"temperature", "n", "stop", "seed", "tools" if "chat" in path else "suffix"} <= names
    for name in sorted(names):
        value = LOGPROBS[path] if name == "logprobs" else EXTREME.get(name, {"any": ["value"]})
        base = BASE | NEEDS.get(name, {})
        if name == "top_logprobs" and "chat" not in path:
            continue
        plain = await seen(http, path, **base)
        assert plain[0] == 200, (name, plain)
        assert await seen(http, path, **base) == plain
        with_it = await seen(http, path, **(base | {name: value}))
        if with_it[0] == 400:
            assert with_it[1].startswith(name), (name, with_it)
            assert name not in EXTREME or name == "response_format" or (name == "echo" and "chat" in path)
        else:
            assert with_it != plain, name


async def test_a_field_that_is_read_is_never_called_ignored(http: HttpRig) -> None:
    for path in PATHS:
        parse, body = MINIMAL[path]
        names = names_read(parse, body)
        ignored = parse({**body, **dict.fromkeys(names - set(body)), "unheard_of": 1}).ignored
        assert ignored == ("unheard_of",)
