"""Answers of both doors say how the caller stands at its limits, refusals when to come back."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.fakes.gateway_rig import ACME_KEY, ACME_TOKENS, a_request
from tests.fakes.http_rig import KEY, HttpRig, http_rig

NAMES = {f"x-ratelimit-{what}-tokens" for what in ("limit", "remaining", "reset")}


@pytest.fixture
async def http() -> AsyncIterator[HttpRig]:
    async with http_rig() as started:
        yield started


def told(pairs: Any) -> dict[str, str]:
    return {name: value for name, value in pairs if name.startswith("x-ratelimit") or name == "retry-after"}


@pytest.mark.parametrize("stream", [False, True])
async def test_http_answers_carry_the_rates(http: HttpRig, stream: bool) -> None:
    http.web.headers["authorization"] = f"Bearer {KEY}"
    answer = await http.post(stream=stream, max_tokens=8)
    assert answer.status_code == 200
    headers = told(answer.headers.items())
    assert headers.keys() == NAMES
    assert headers["x-ratelimit-limit-tokens"] == str(ACME_TOKENS)
    assert 0 < int(headers["x-ratelimit-remaining-tokens"]) <= ACME_TOKENS


async def test_grpc_answers_carry_the_same_and_refusals_as_well(http: HttpRig) -> None:
    call = http.rig.stub.Generate(a_request(), metadata=ACME_KEY, timeout=30)
    assert [message async for message in call]
    assert told(await call.initial_metadata()).keys() == NAMES
    http.rig.worker.step_s = 60
    others = [
        http.rig.stub.Generate(a_request(n=16, max_output_tokens=100), metadata=ACME_KEY) for _ in range(4)
    ]
    for one in others:
        await one.read()  # Whatever comes first comes after its reservation.
    refused = http.rig.stub.Generate(a_request(), metadata=ACME_KEY, timeout=30)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await refused.read()
    trailers = told(caught.value.trailing_metadata() or ())
    assert trailers.keys() == NAMES | {"retry-after"}
    assert int(trailers["retry-after"]) >= 1
    for one in others:
        one.cancel()
