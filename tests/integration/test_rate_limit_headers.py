"""Answers of both doors say how the caller stands at its limits, refusals when to come back."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from gateway.core.keys import ApiKey, KeyScope, digest_key, short_id
from protos.gateway.v1 import gateway_pb2 as pb
from tests.fakes import gateway_rig
from tests.fakes.gateway_rig import ACME_KEY, ACME_TOKENS, SERVER_KEY, a_request
from tests.fakes.http_rig import KEY, HttpRig, http_rig
from tests.fakes.quota_memory import MemoryQuota

NAMES = {f"x-ratelimit-{what}-tokens" for what in ("limit", "remaining", "reset")} | {
    f"x-ratelimit-{what}-requests" for what in ("limit", "remaining")
}
"""Of a tenant with a rate of tokens, and a limit of concurrency which nothing refills."""


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


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/models", None, 200),
        ("GET", "/v1/models/tiny", None, 200),
        ("GET", "/v1/models/absent", None, 404),
        ("GET", "/v1/usage", None, 200),
        ("GET", "/v1/usage?period=never", None, 400),
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/v1/completions", None, 405),
        ("POST", "/v1/completions", {"model": "tiny", "prompt": "hello", "top_p": 7}, 400),
        ("POST", "/v1/completions", {"model": "tiny"}, 400),
        ("POST", "/v1/completions", {"model": "absent", "prompt": "hello"}, 404),
    ],
)
async def test_http_answers_that_reserve_nothing_carry_them_too(
    http: HttpRig, method: str, path: str, body: Any, status: int
) -> None:
    http.web.headers["authorization"] = f"Bearer {KEY}"
    answer = await http.web.request(method, path, json=body)
    assert answer.status_code == status
    assert told(answer.headers.items()).keys() == NAMES
    assert answer.headers["x-ratelimit-remaining-tokens"] == str(ACME_TOKENS)
    del http.web.headers["authorization"]
    answer = await http.web.request(method, path, headers={"authorization": "Bearer nobody's"}, json=body)
    assert (answer.status_code, told(answer.headers.items())) == (401, {}), "who calls is not known"


async def test_a_fault_of_ours_carries_them(http: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(type(http.rig.parts.queries), "served_models", broken)
    answer = await http.web.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
    assert answer.status_code == 500
    assert told(answer.headers.items()).keys() == NAMES
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await http.rig.stub.ListModels(pb.ListModelsRequest(), metadata=ACME_KEY)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert told(caught.value.trailing_metadata() or ()).keys() == NAMES


async def test_unary_grpc_calls_tell_in_their_trailing_metadata(http: HttpRig) -> None:
    stub = http.rig.stub
    calls = [
        stub.ListModels(pb.ListModelsRequest(), metadata=ACME_KEY),
        stub.Tokenize(pb.TokenizeRequest(model="tiny", text="hello"), metadata=ACME_KEY),
        stub.GetUsage(pb.GetUsageRequest(), metadata=ACME_KEY),
    ]
    for call in calls:
        await call
        assert told(await call.trailing_metadata()).keys() == NAMES
    failing = [
        stub.Tokenize(pb.TokenizeRequest(model="absent", text="hello"), metadata=ACME_KEY),
        stub.GetRequest(pb.GetRequestRequest(request_id="nobody's"), metadata=ACME_KEY),
        stub.GetUsage(pb.GetUsageRequest(period="never"), metadata=ACME_KEY),
        stub.Generate(a_request(max_output_tokens=10**9), metadata=ACME_KEY).read(),
    ]
    for failed in failing:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await failed
        assert told(caught.value.trailing_metadata() or ()).keys() == NAMES


async def test_a_key_that_is_not_for_the_call_still_hears_of_its_limits(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = digest_key(SERVER_KEY, "reader")
    key = ApiKey(
        id=short_id(digest), tenant=gateway_rig.ACME.id, digest=digest, scopes=frozenset({KeyScope.USAGE})
    )
    directory = http.rig.parts.admin.feed.directory
    monkeypatch.setattr(directory, "keys", {**directory.keys, key.id: key})
    answer = await http.web.get("/v1/models", headers={"authorization": "Bearer reader"})
    assert (answer.status_code, told(answer.headers.items()).keys()) == (403, NAMES)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await http.rig.stub.ListModels(pb.ListModelsRequest(), metadata=(("authorization", "Bearer reader"),))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert told(caught.value.trailing_metadata() or ()).keys() == NAMES


async def test_while_the_store_is_down_answers_come_without(http: HttpRig) -> None:
    quota = http.rig.quota
    assert isinstance(quota, MemoryQuota)
    quota.is_down = True
    answer = await http.web.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
    assert (answer.status_code, told(answer.headers.items())) == (200, {})
    call = http.rig.stub.ListModels(pb.ListModelsRequest(), metadata=ACME_KEY)
    assert (await call).models
    assert told(await call.trailing_metadata()) == {}
    quota.is_down = False
    answer = await http.web.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
    assert told(answer.headers.items()).keys() == NAMES, "the control"


async def test_grpc_answers_carry_the_same_and_refusals_as_well(
    http: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.core.deadlines.HEARTBEAT_S", 0.05)
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
