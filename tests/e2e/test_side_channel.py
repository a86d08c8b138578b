"""Nothing that one tenant may read tells what another one has asked: fields and counts, no times.

Times, ids, the worker's name (equal workers take turns) and the text itself are left out: they differ between
any two requests. That times tell nothing either is measured by `python -m bench.tenants --side-channel`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

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
        metadata = [*await call.initial_metadata(), *await call.trailing_metadata()]
        found["metadata"] = sorted({name for name, _ in metadata})
        await at_rest(stack)
        kept = await self.stub.GetRequest(pb.GetRequestRequest(request_id=request_id), metadata=self.key)
        found |= fields_of(kept, "kept.")
        models = await self.stub.ListModels(pb.ListModelsRequest(), metadata=self.key)
        found |= fields_of(models, "models.")
        usage = await self.usage()
        found |= {f"usage.{name}": count - usage_before.get(name, 0) for name, count in usage.items()}
        return found

    async def usage(self) -> dict[str, int]:
        """Return the counts of the tenant's usage."""
        answer = await self.stub.GetUsage(pb.GetUsageRequest(period="month"), metadata=self.key)
        total: dict[str, int] = {}
        for row in answer.report.rows:
            for name, value in fields_of(row).items():
                if isinstance(value, int) and name not in ("page_ms", "cost_nanos"):
                    total[name] = total.get(name, 0) + value
        return total


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
