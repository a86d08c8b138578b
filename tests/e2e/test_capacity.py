"""Admission against a pool that is too small: never, later, or now."""

import asyncio

import pytest

from services.client import AsyncClient
from services.domain.errors import Code, PromptTooLong, QuotaExceeded
from services.domain.generation import FinishReason
from tests.e2e.leftovers import leftovers
from tests.e2e.stack import Stack
from tests.e2e.stack_setup import CAP_PAGES
from tests.e2e.waiting import until


@pytest.mark.failure("B051")
@pytest.mark.parametrize(("num_prompt", "max_output"), [(2561, 1), (2400, 200), (100, 2600)])
async def test_what_can_never_fit_is_refused_at_once_with_numbers(
    calm: Stack, num_prompt: int, max_output: int
) -> None:
    """A pool of 160 pages holds 2,560 tokens, the last output token takes no room in it."""
    async with calm.client() as client:
        await client.models()
        with pytest.raises(PromptTooLong) as caught:
            await client.generate_text([5] * num_prompt, max_output_tokens=max_output)
    assert caught.value.code is Code.INVALID_ARGUMENT
    numbers = caught.value.message.replace(",", "")
    assert str(num_prompt) in numbers
    assert "160" in numbers or "2560" in numbers


@pytest.mark.failure("B051")
async def test_the_largest_request_that_fits_finishes(calm: Stack) -> None:
    async with calm.client() as client:
        whole = await client.generate_text([5] * 2520, max_output_tokens=40, ignore_eos=True)
    assert whole.receipt.usage.output_tokens == 40
    assert whole.choices[0].reason is FinishReason.LENGTH


@pytest.mark.failure("B032", "B053", "B054")
async def test_sixty_four_that_fit_one_by_one_finish_where_three_fit_at_once(calm: Stack) -> None:
    """Each needs up to 49 of 160 pages; n prompts differ, so nothing is shared."""

    async def one(client: AsyncClient, number: int) -> int:
        prompt = [100 + number] * 700
        whole = await client.generate_text(prompt, max_output_tokens=80, ignore_eos=True)
        return whole.receipt.usage.output_tokens

    async with calm.client() as client:
        done = await asyncio.gather(*(one(client, number) for number in range(64)))
    assert done == [80] * 64
    await until("everything given back", lambda: leftovers(calm), limit_s=60, good=lambda left: not left)
    for worker in ("worker-0", "worker-1"):
        metrics = await calm.metrics(worker)
        assert metrics.sum("quire_kv_pages") == 160


async def test_a_capped_tenant_may_use_its_whole_cap_on_one_worker_and_never_more(calm: Stack) -> None:
    """Each needs the whole cap of 100 pages on a worker whose share of it is 50: one after the other runs."""

    async def ask(client: AsyncClient, number: int, num_prompt: int) -> int:
        whole = await client.generate_text([200 + number] * num_prompt, max_output_tokens=40, ignore_eos=True)
        return whole.receipt.usage.output_tokens

    async def in_force() -> float:
        return (await calm.metrics("kvmanager")).sum("quire_kv_slice_pages", tenant="capped")

    largest = CAP_PAGES * 16 - 39
    async with calm.client("capped") as client, calm.client("red") as other:
        tasks = [asyncio.create_task(ask(client, number, largest)) for number in range(6)]
        tasks += [asyncio.create_task(ask(client, 10 + number, 100)) for number in range(6)]
        tasks += [asyncio.create_task(ask(other, 20 + number, 100)) for number in range(6)]
        while not all(task.done() for task in tasks):
            assert await in_force() <= CAP_PAGES
            await asyncio.sleep(0.05)
        assert await asyncio.gather(*tasks) == [40] * 18
        with pytest.raises(QuotaExceeded) as caught:
            await ask(client, 30, largest + 1)
        assert caught.value.detail.quota == "tenant/kv_pages"
        assert str(CAP_PAGES) in caught.value.message
        assert str(CAP_PAGES + 1) in caught.value.message
    await until("everything given back", lambda: leftovers(calm), limit_s=60, good=lambda left: not left)


@pytest.mark.failure("B010")
async def test_all_choices_of_a_request_stop_when_its_caller_leaves(calm: Stack) -> None:
    async with calm.client() as client:
        async with client.generate([7] * 40, n=4, max_output_tokens=600, ignore_eos=True) as stream:
            async for _ in stream.text():
                break
        await until("all four given back", lambda: leftovers(calm), limit_s=60, good=lambda left: not left)
        whole = await client.generate_text([7] * 40, n=4, max_output_tokens=20, ignore_eos=True)
    assert [choice.output_tokens for choice in whole.choices] == [20] * 4
