"""Idempotency keys over HTTP: the header of that name."""

from collections.abc import AsyncIterator

import pytest

from tests.fakes.http_rig import HttpRig, http_rig
from tests.integration.test_http_door import error_of


@pytest.fixture
async def http() -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        yield started


@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
async def test_a_key_serves_once_and_names_its_request(http: HttpRig, prompt: str | list[str]) -> None:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2}
    key = {"Idempotency-Key": "order-1"}
    first = await http.web.post("/v1/completions", json=body, headers=key)
    assert first.status_code == 200
    assert len(first.json()["choices"]) == len(prompt)
    again = await http.web.post("/v1/completions", json=body, headers=key)
    assert (again.status_code, error_of(again)["code"]) == (409, "DUPLICATE_IDEMPOTENCY_KEY")
    assert any(name in error_of(again)["message"] for name in first.headers["x-request-id"].split(", "))
    other = await http.web.post("/v1/completions", json=body, headers={"Idempotency-Key": "order-2"})
    assert other.status_code == 200


async def test_a_key_that_is_too_long_is_refused_under_the_name_of_its_header(http: HttpRig) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    answer = await http.web.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "x" * 129})
    assert answer.status_code == 400
    assert error_of(answer)["message"].startswith(
        "Idempotency-Key: must be 0 to 128 characters long, got 129"
    )


async def test_keys_of_later_prompts_are_never_too_long_and_nobody_s_own(http: HttpRig) -> None:
    longest = "x" * 128
    body = {"model": "tiny", "prompt": ["x", "y", "z"], "max_tokens": 2}
    first = await http.web.post("/v1/completions", json=body, headers={"Idempotency-Key": longest})
    assert first.status_code == 200, first.text
    for key in ("x", "x#1"):
        answer = await http.web.post("/v1/completions", json=body, headers={"Idempotency-Key": key})
        assert answer.status_code == 200, answer.text
