"""The OpenAI-compatible door over real processes."""

import asyncio
import base64
import json
import random
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.e2e.stack import Stack
from tests.e2e.stack_setup import MODEL

EMPTY: list[dict[str, object]] = [
    *({"prompt": prompt} for prompt in ("", [], [""], [[]], ["good", ""], [[1], []])),
    {"prompt": "good", "max_tokens": 0},
    *({"prompt": prompt, "max_tokens": 0, "echo": True} for prompt in ("", [], [""], [[]])),
    {"messages": []},
    *({"messages": [{"role": "user", "content": content}]} for content in ("", None, [])),
]
"""Calls that ask for nothing, or about nothing."""


def post(stack: Stack, body: dict[str, object]) -> tuple[int, dict[str, object]]:
    """Return status and answer of an HTTP completion."""
    path = "chat/completions" if "messages" in body else "completions"
    url = f"http://127.0.0.1:{stack.ports.http}/v1/{path}"
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.failure("B051")
async def test_the_http_door_refuses_it_with_the_same_numbers(calm: Stack) -> None:
    body: dict[str, object] = {"model": MODEL, "prompt": [5] * 2561, "max_tokens": 1}
    status, answer = await asyncio.to_thread(post, calm, body)
    assert status == 400
    error = answer["error"]
    assert isinstance(error, dict)
    assert "2561" in error["message"].replace(",", "")
    assert error["type"] == "invalid_request_error"


@pytest.mark.failure("B098")
async def test_empty_calls_are_refused_and_what_runs_beside_them_is_unharmed(calm: Stack) -> None:
    fields: dict[str, object] = {"model": MODEL, "max_tokens": 200, "ignore_eos": True, "seed": 3}
    good = {**fields, "prompt": [[7] * 20, [8] * 33, [9] * 5], "n": 2}
    _, alone = await asyncio.to_thread(post, calm, good)
    beside = asyncio.create_task(asyncio.to_thread(post, calm, good))
    told = await asyncio.gather(*(asyncio.to_thread(post, calm, {**fields, **one}) for one in EMPTY))
    assert [status for status, _ in told] == [400] * len(EMPTY)
    assert (await beside)[1]["choices"] == alone["choices"]
    status, echoed = await asyncio.to_thread(
        post, calm, {"model": MODEL, "prompt": "good", "max_tokens": 0, "echo": True}
    )
    assert (status, echoed["choices"][0]["text"]) == (200, "good")  # type: ignore[index]


@pytest.mark.failure("B102")
async def test_a_megabyte_that_is_hard_to_tokenise_is_refused_and_others_are_served(calm: Stack) -> None:
    draw = random.Random(102)
    noise = base64.b64encode(draw.randbytes(750_000)).decode()
    good: dict[str, object] = {"model": MODEL, "prompt": [7] * 20, "max_tokens": 50, "ignore_eos": True}
    patterns = ("a" * 1_000_000, "_" * 1_000_000, " " * 1_000_000, "👍" * 250_000, noise)
    bodies: list[dict[str, object]] = [
        {"model": MODEL, "prompt": text[: len(text) // part]} for text in patterns for part in (1, 8)
    ]
    hostile = asyncio.gather(*(asyncio.to_thread(post, calm, body) for body in bodies))
    for _ in range(3):
        status, answer = await asyncio.to_thread(post, calm, good)
        assert status == 200
        assert answer["usage"]["completion_tokens"] == 50  # type: ignore[index]
    told = await hostile
    assert [status for status, _ in told[::2]] == [400] * len(patterns)
    assert {answer["error"]["code"] for _, answer in told[::2]} == {"PROMPT_TOO_LONG"}  # type: ignore[index]
    # Of the parts those fit whose long runs are a token each.
    assert {status for status, _ in told[1::2]} == {200, 400}
