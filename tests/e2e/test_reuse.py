"""What is reused and why not, as receipts and the workers' counters tell it; one request at a time."""

import asyncio

import pytest

from protos.kvmanager.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from services.chassis.grpc import create_channel
from services.client import AsyncClient
from services.client.values import Completion
from services.domain.miss_reason import MissReason
from tests.e2e.leftovers import leftovers
from tests.e2e.stack import Stack
from tests.e2e.waiting import until

SHARED, TAIL = 1000, 24
CACHED = 992
"""1,000 shared tokens are 62 whole blocks of 16."""
WORDS = "The river runs past the old mill and under nine bridges before it reaches the harbour town. "


async def words(client: AsyncClient, salt: str, num_tokens: int) -> list[int]:
    """Return token ids of real text that no other test sends."""
    tokens = await client.tokenize(f"{salt}. " + WORDS * (num_tokens // 12))
    assert len(tokens.ids) >= num_tokens
    return list(tokens.ids[:num_tokens])


async def prefilled(stack: Stack) -> int:
    return sum(worker.prefill_tokens for worker in await stack.workers())


async def ask(client: AsyncClient, ids: list[int], **options: object) -> Completion:
    return await client.generate_text(ids, max_output_tokens=4, seed=7, **options)  # type: ignore[arg-type]


async def at_rest(stack: Stack) -> None:
    """What was computed is known to the index only once the worker has said so."""
    await until("everything given back", lambda: leftovers(stack), limit_s=60, good=lambda left: not left)

    async with create_channel(f"127.0.0.1:{stack.ports.kvmanager}") as channel:
        kvmanager = kvmanager_pb2_grpc.KvManagerServiceStub(channel)

        async def num_unknown() -> int:
            status = await kvmanager.GetStatus(kvmanager_pb2.GetStatusRequest())
            cached = sum(worker.cached_pages for worker in await stack.workers())
            return cached - sum(worker.blocks for worker in status.workers)

        await until("the index knows what is cached", num_unknown, limit_s=60, good=lambda left: left == 0)


async def test_a_shared_prefix_is_computed_once(calm: Stack) -> None:
    async with calm.client() as client:
        shared = await words(client, "once", SHARED)
        first = await ask(client, shared + await words(client, "first tail", TAIL))
        assert first.receipt.usage.cached_tokens == 0
        assert first.receipt.miss_reason is MissReason.NEVER_SEEN
        await at_rest(calm)
        before = await prefilled(calm)
        second = await ask(client, shared + await words(client, "second tail", TAIL))
    assert second.started.cached_tokens == CACHED
    assert second.receipt.usage.cached_tokens == CACHED
    assert await prefilled(calm) - before == SHARED + TAIL - CACHED == 32
    assert second.receipt.miss_reason is MissReason.FIRST_DIFFERENCE
    assert second.receipt.first_miss_token == CACHED
    assert second.receipt.worker == first.receipt.worker


async def test_what_is_being_computed_is_not_called_never_seen(calm: Stack) -> None:
    async with calm.client() as client:
        ids = await words(client, "at once", SHARED)
        asked = await asyncio.gather(*(ask(client, ids) for _ in range(4)))
    reasons = [one.receipt.miss_reason for one in asked]
    assert reasons.count(MissReason.NEVER_SEEN) == 1
    assert set(reasons) <= {MissReason.NEVER_SEEN, MissReason.IN_FLIGHT, MissReason.NONE}


async def test_identical_prompts_arriving_together_are_computed_once_on_two_workers(calm: Stack) -> None:
    """Four, in whose company each costs less than its prompt however messages fall together."""
    num_prompts, num_output = 4, 100
    async with calm.client() as client:
        ids = await words(client, "siblings", SHARED)
        await at_rest(calm)
        assert len(await calm.workers()) == 2
        before = await prefilled(calm)
        options = {"max_output_tokens": num_output, "ignore_eos": True, "seed": 7}
        asked = [client.generate_text(ids, **options) for _ in range(num_prompts)]  # type: ignore[arg-type]
        answers = await asyncio.gather(*asked)
        await at_rest(calm)
    assert await prefilled(calm) - before == SHARED + (num_prompts - 1) * (SHARED - CACHED)
    cached = sorted(one.receipt.usage.cached_tokens for one in answers)
    assert cached == [0] + [CACHED] * (num_prompts - 1)
    assert len({one.receipt.worker for one in answers}) == 1


async def test_another_tenant_shares_nothing(calm: Stack) -> None:
    async with calm.client("red") as red, calm.client("blue") as blue:
        ids = await words(red, "tenants", SHARED)
        await ask(red, ids)
        await at_rest(calm)
        before = await prefilled(calm)
        other = await ask(blue, ids)
        assert other.receipt.usage.cached_tokens == 0
        assert other.receipt.miss_reason is MissReason.NEVER_SEEN
        assert await prefilled(calm) - before == SHARED
        assert (await ask(red, ids)).receipt.usage.cached_tokens == CACHED


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cache_opt_out": True}, MissReason.OPT_OUT),
        ({"cache_salt": "my own"}, MissReason.OWN_SALT),
    ],
)
async def test_a_caller_who_shares_nothing_is_told_so(
    calm: Stack, options: dict[str, object], reason: MissReason
) -> None:
    async with calm.client() as client:
        ids = await words(client, f"caller {reason}", SHARED)
        await ask(client, ids)
        await at_rest(calm)
        alone = await ask(client, ids, **options)
        assert alone.receipt.usage.cached_tokens == 0
        assert alone.receipt.miss_reason is reason
        again = await ask(client, ids)
    assert again.receipt.usage.cached_tokens == CACHED


async def test_a_prompt_that_opted_out_is_not_kept(calm: Stack) -> None:
    async with calm.client() as client:
        ids = await words(client, "not kept", SHARED)
        await ask(client, ids, cache_opt_out=True)
        await at_rest(calm)
        later = await ask(client, ids)
    assert later.receipt.usage.cached_tokens == 0
    assert later.receipt.miss_reason is MissReason.NEVER_SEEN


@pytest.mark.failure("B040")
async def test_a_prompt_of_whole_blocks_computes_its_last_token_again(calm: Stack) -> None:
    async with calm.client() as client:
        ids = await words(client, "whole blocks", 48)
        first = await ask(client, ids, return_token_ids=True)
        await at_rest(calm)
        second = await ask(client, ids, return_token_ids=True)
    assert second.receipt.usage.cached_tokens == 32
    assert second.choices[0].token_ids == first.choices[0].token_ids


@pytest.mark.failure("B018")
async def test_what_a_cancelled_answer_computed_is_kept(calm: Stack) -> None:
    async with calm.client() as client:
        ids = await words(client, "cancelled", SHARED)
        async with client.generate(ids, max_output_tokens=1000, ignore_eos=True) as stream:
            async for _ in stream.text():
                break
        await at_rest(calm)
        follow_up = await ask(client, ids)
    assert follow_up.receipt.usage.cached_tokens == CACHED
