"""The OpenAI-compatible door over real processes."""

import asyncio
import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.e2e.stack import Stack
from tests.e2e.stack_setup import MODEL


def post(stack: Stack, body: dict[str, object]) -> tuple[int, dict[str, object]]:
    """Return status and answer of an HTTP completion."""
    url = f"http://127.0.0.1:{stack.ports.http}/v1/completions"
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
