"""Nothing that one tenant may read tells what another one has asked: fields and counts, no times.

A tenant may read, over both doors, the answers to its own requests with their receipts and headers, what
becomes of these, the lists of models and its usage. Metrics are on the operator's ports alone: no door shows
any, and none has a label of a tenant. Times, ids, the worker's name (equal workers take turns) and the text
itself are left out: they differ between any two requests. That times tell nothing either is measured by
`python -m bench.tenants side-channel`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pytest
from google.protobuf.message import Message

from protos.gateway.v1 import gateway_pb2 as pb
from protos.gateway.v1 import gateway_pb2_grpc
from services.chassis.grpc import create_channel
from tests.e2e.stack import Stack
from tests.e2e.stack_setup import KEYS, MODEL
from tests.e2e.test_reuse import CACHED, SHARED, at_rest, words

LEFT_OUT = {
    "request_id", "worker", "text", "token_ids",
    "queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "tpot_ms", "page_seconds",
}  # fmt: skip
DIFFERS = {"x-request-id", "traceparent", "date", "server", "content-length"}
"""Headers of which any two answers differ; so do those that tell when a limit is full again."""
LEFT_OUT_OVER_HTTP = {"id", "created", "text", *LEFT_OUT}
TOLD_OF_TIME = ("queued", "still_waiting", "delta")
"""Events that come as often as time wills."""


def fields_of(message: Message, prefix: str = "") -> dict[str, object]:
    """Return every field of a message, set or not, but those of `LEFT_OUT`."""
    found: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        name, value = f"{prefix}{field.name}", getattr(message, field.name)
        if field.name in LEFT_OUT:
            continue
        if isinstance(value, Message):
            if message.HasField(field.name):
                found |= fields_of(value, f"{name}.")
        elif isinstance(value, str | bytes | int | float):
            found[name] = value
        else:
            for index, one in enumerate(value):
                is_message = isinstance(one, Message)
                found |= fields_of(one, f"{name}.{index}.") if is_message else {f"{name}.{index}": one}
    return found


def headers_of(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Return what headers or metadata say, but those of `DIFFERS`."""
    lowered = ((name.lower(), value) for name, value in pairs)
    return {
        f"header.{name}": value for name, value in lowered if name not in DIFFERS and "-reset-" not in name
    }


def json_fields(value: object, name: str = "json") -> dict[str, object]:
    """Return every field of an answer but those of `LEFT_OUT_OVER_HTTP`."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key not in LEFT_OUT_OVER_HTTP}
        return {k: v for key, one in kept.items() for k, v in json_fields(one, f"{name}.{key}").items()}
    if isinstance(value, list):
        return {k: v for i, one in enumerate(value) for k, v in json_fields(one, f"{name}.{i}").items()}
    return {name: value}


class Reader:
    """One tenant, who looks at everything that it is told."""

    def __init__(self, channel: grpc.aio.Channel, tenant: str) -> None:
        self.stub = gateway_pb2_grpc.GenerateServiceStub(channel)
        self.key = (("authorization", f"Bearer {KEYS[tenant]}"),)

    def call(self, ids: list[int], num_tokens: int = 4) -> Any:
        asked = pb.GenerateRequest(
            model=MODEL, token_ids=pb.TokenIds(ids=ids), max_output_tokens=num_tokens, ignore_eos=True
        )
        asked.sampling.seed = 7
        return self.stub.Generate(asked, metadata=self.key, timeout=60)

    async def ask(self, stack: Stack, ids: list[int]) -> dict[str, object]:
        """Return all that a request brings to light: its stream, its metadata's names, what becomes of it."""
        await at_rest(stack)
        usage_before = await self.usage()
        call = self.call(ids)
        found: dict[str, object] = {}
        request_id = ""
        async for message in call:
            kind = message.WhichOneof("event")
            request_id = getattr(message.started, "request_id", "") or request_id
            if kind not in TOLD_OF_TIME:
                found |= fields_of(message)
        found |= headers_of([*await call.initial_metadata(), *await call.trailing_metadata()])
        await at_rest(stack)
        kept = await self.stub.GetRequest(pb.GetRequestRequest(request_id=request_id), metadata=self.key)
        found |= fields_of(kept, "kept.")
        models = await self.stub.ListModels(pb.ListModelsRequest(), metadata=self.key)
        found |= fields_of(models, "models.")
        usage = await self.usage()
        found |= {f"usage.{name}": count - usage_before.get(name, 0) for name, count in usage.items()}
        return found

    async def over_http(self, stack: Stack, path: str, ids: list[int] | None = None) -> dict[str, object]:
        """Return all that an answer of the HTTP door has: status, headers and fields."""
        await at_rest(stack)
        body = {"model": MODEL, "prompt": ids, "max_tokens": 4, "ignore_eos": True, "seed": 7}
        headers = {"authorization": dict(self.key)["authorization"], "content-type": "application/json"}
        url = f"http://127.0.0.1:{stack.ports.http}{path}"
        asked = Request(url, None if ids is None else json.dumps(body).encode(), headers)

        def read() -> tuple[int, list[tuple[str, str]], bytes]:
            try:
                with urlopen(asked, timeout=60) as answer:
                    return answer.status, answer.getheaders(), answer.read()
            except HTTPError as error:
                with error:
                    return error.code, list(error.headers.items()), error.read()

        status, told, content = await asyncio.to_thread(read)
        return {"status": status, **headers_of(told), **json_fields(json.loads(content))}

    async def usage(self) -> dict[str, int]:
        """Return the counts of the tenant's usage."""
        answer = await self.stub.GetUsage(pb.GetUsageRequest(period="month"), metadata=self.key)
        total: dict[str, int] = {}
        for row in answer.report.rows:
            for name, value in fields_of(row).items():
                if isinstance(value, int) and name not in ("page_ms", "cost_nanos"):
                    total[name] = total.get(name, 0) + value
        return total


def metric_ports(stack: Stack) -> list[int]:
    """Return the operator's ports with metrics: no tenant's, since they ask for no key."""
    ports = stack.ports
    return [ports.gateway_probe(), ports.scheduler_probe(), ports.kvmanager_probe(), ports.worker_probe(1)]


def metrics_of(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


@asynccontextmanager
async def reader(stack: Stack, tenant: str) -> AsyncIterator[Reader]:
    async with create_channel(f"127.0.0.1:{stack.ports.gateway}") as channel:
        yield Reader(channel, tenant)


async def test_guessing_anothers_prompt_looks_like_asking_a_fresh_one(calm: Stack) -> None:
    async with calm.client("red") as client, reader(calm, "red") as red, reader(calm, "blue") as blue:
        prompts = [await words(client, f"side channel {number}", SHARED) for number in range(4)]
        asked, fresh, running, again = prompts
        await red.ask(calm, asked)
        guess = await blue.ask(calm, asked)
        assert guess["receipt.usage.cached_tokens"] == 0
        assert guess == await blue.ask(calm, fresh)
        # While it is being computed for somebody else, too.
        call = red.call(running, 400)
        async for message in call:
            if message.WhichOneof("event") == "delta":
                break
        during = asyncio.create_task(blue.ask(calm, running))
        async for _ in call:
            pass
        assert guess == await during
        # The control: one's own prompt, asked a second time, shows in many fields.
        first, second = await red.ask(calm, again), await red.ask(calm, again)
        assert second["receipt.usage.cached_tokens"] == CACHED
        differing = {name for name, value in second.items() if first[name] != value}
        assert {
            "started.cached_tokens",
            "receipt.usage.cached_tokens",
            "receipt.computed_tokens",
            "receipt.cache.miss_reason",
            "kept.receipt.usage.cached_tokens",
        } <= differing


async def test_guessing_anothers_prompt_over_http_looks_like_asking_a_fresh_one(calm: Stack) -> None:
    async with calm.client("red") as client, reader(calm, "red") as red, reader(calm, "blue") as blue:
        prompts = [await words(client, f"side channel over http {number}", SHARED) for number in range(3)]
        asked, fresh, again = prompts
        await red.over_http(calm, "/v1/completions", asked)
        guess = await blue.over_http(calm, "/v1/completions", asked)
        assert guess == await blue.over_http(calm, "/v1/completions", fresh)
        assert guess["status"] == 200
        assert guess["json.usage.prompt_tokens_details.cached_tokens"] == 0
        assert "header.x-ratelimit-remaining-tokens" in guess
        # What stands still while only another tenant asks.
        for path in ("/v1/models", "/v1/usage?period=day&by=key,model"):
            before = await blue.over_http(calm, path)
            await red.over_http(calm, "/v1/completions", asked)
            assert before == await blue.over_http(calm, path)
        # The control: one's own prompt, asked a second time.
        first, second = [await red.over_http(calm, "/v1/completions", again) for _ in range(2)]
        assert second["json.usage.prompt_tokens_details.cached_tokens"] == CACHED
        assert first != second


async def test_no_door_shows_a_tenant_any_metric(calm: Stack) -> None:
    async with reader(calm, "blue") as blue:
        assert (await blue.over_http(calm, "/metrics"))["status"] == 404
    for text in await asyncio.gather(*(asyncio.to_thread(metrics_of, port) for port in metric_ports(calm))):
        assert "quire_" in text
        named = [name for name in ("red", "blue", "green") if f'"{name}"' in text]
        assert named == [], "no label names a tenant"


async def test_anothers_request_cannot_be_told_from_one_that_never_was(calm: Stack) -> None:
    async with calm.client("red") as client, reader(calm, "red") as red, reader(calm, "blue") as blue:
        call = red.call(await words(client, "side channel ids", 64))
        request_id = ""
        async for message in call:
            request_id = message.started.request_id or request_id
        errors = []
        for name in (request_id, f"{request_id[:-1]}{'0' if request_id[-1] != '0' else '1'}"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await blue.stub.GetRequest(pb.GetRequestRequest(request_id=name), metadata=blue.key)
            details = (caught.value.details() or "").replace(name, "ID")
            errors.append((caught.value.code(), details))
        assert errors[0] == errors[1]
        assert errors[0][0] is grpc.StatusCode.NOT_FOUND
