"""Each process is killed with -9 while requests wait and run; the launcher starts it again.

Where the hits after the kvmanager's death come from is not told apart here: living workers send their
snapshots at once. Hits from the Redis copy, snapshots withheld, are in `tests/integration/test_kvmanager.py`.
"""

import asyncio
import contextlib

import pytest

from services.client import AsyncClient, AsyncEventStream, Running
from services.client.values import Completion, Delta
from services.domain.errors import Code, ServeError, WorkerLost
from tests.e2e.leftovers import leftovers, live_leases
from tests.e2e.stack import Stack
from tests.e2e.waiting import until

LEASE_S = 30.0
BACK_WITHIN_S = 60.0


async def at_rest(stack: Stack, limit_s: float = 20) -> None:
    await until(
        "everything given back", lambda: leftovers(stack), limit_s=limit_s, good=lambda left: not left
    )


async def finished(stack: Stack) -> float:
    """Return how many answers the workers have finished."""
    metrics = [await stack.metrics(worker.name) for worker in await stack.workers()]
    return sum(one.sum("quire_requests_finished_total", reason="length") for one in metrics)


async def ask(client: AsyncClient, number: int, num_tokens: int = 100) -> Completion:
    return await client.generate_text(
        [number + 1] * 30, max_output_tokens=num_tokens, ignore_eos=True, seed=number, return_token_ids=True
    )


@pytest.mark.slow
async def test_all_who_wait_while_the_scheduler_is_killed_finish_once(mortal: Stack) -> None:
    num_requests = 450
    before = await finished(mortal)
    async with mortal.client("red") as client:
        tasks = [asyncio.create_task(ask(client, n)) for n in range(num_requests)]
        await until("200 wait", mortal.queue, limit_s=60, good=lambda queue: queue.waiting >= 200)
        term = (await mortal.queue()).term
        mortal.process("scheduler").kill()
        whole = await asyncio.gather(*tasks)
        assert (await mortal.queue()).term > term
        assert {one.receipt.usage.output_tokens for one in whole} == {100}
        assert len({one.receipt.request_id for one in whole}) == num_requests
        assert await finished(mortal) - before == num_requests
        for number in (0, 150, 449):
            assert (await ask(client, number)).choices[0].token_ids == whole[number].choices[0].token_ids
    await at_rest(mortal)


async def test_running_streams_do_not_notice_that_the_kvmanager_is_killed(mortal: Stack) -> None:
    reading: set[int] = set()

    async def read(client: AsyncClient, number: int) -> int:
        async with client.generate([number] * 30, max_output_tokens=500, ignore_eos=True) as stream:
            async for event in stream:
                if isinstance(event, Delta):
                    reading.add(number)
            assert stream.receipt is not None
            return stream.receipt.attempts

    async def num_reading() -> int:
        return len(reading)

    async def hits() -> float:
        return (await mortal.metrics("kvmanager")).sum("quire_prefix_index_hits_total")

    async with mortal.client() as client:
        prompt = [77] * 500
        await client.generate_text(prompt, max_output_tokens=2)
        tasks = [asyncio.create_task(read(client, 600 + number)) for number in range(8)]
        await until("all run", num_reading, limit_s=60, good=lambda number: number == 8)
        mortal.process("kvmanager").kill()
        # Without it a request is placed on load alone.
        assert (await ask(client, 1, 4)).receipt.usage.output_tokens == 4
        assert await asyncio.gather(*tasks) == [1] * 8
        await until("the index is back", hits, limit_s=60, good=lambda number: number == 0)
        await at_rest(mortal)

        async def hit() -> bool:
            again = await client.generate_text(prompt, max_output_tokens=2)
            return await hits() > 0 and again.receipt.usage.cached_tokens == 496

        await until("hits come back", hit, limit_s=60)


@pytest.mark.slow
@pytest.mark.failure("B125")
async def test_a_killed_gateway_leaves_no_pages_and_its_leases_end(mortal: Stack) -> None:
    async with mortal.client() as client:
        streams = [client.generate([9 + n] * 100, max_output_tokens=1000, ignore_eos=True) for n in range(12)]
        for stream in streams:
            async for _ in stream.text():
                break
        assert sum(worker.held_pages for worker in await mortal.workers()) > 50
        mortal.process("gateway").kill()
        await until(
            "no page is held",
            mortal.workers,
            limit_s=60,
            good=lambda workers: sum(worker.held_pages for worker in workers) == 0,
        )
        for stream in streams:
            with pytest.raises(ServeError) as caught:
                await stream.completion()
            assert caught.value.code is Code.UNAVAILABLE

    async def leases() -> int:
        async with mortal.redis() as redis:
            return await live_leases(redis)

    assert await leases() == 12
    await until("the leases end", leases, limit_s=LEASE_S + 60, good=lambda number: number == 0)
    async with mortal.client() as client:
        await until("the gateway is back", client.models, limit_s=60)
        await ask(client, 3)
    # The next call of the tenant buries what the dead gateway had reserved.
    await at_rest(mortal)


@pytest.mark.failure("B076")
async def test_callers_of_a_killed_worker_are_told_what_they_used(mortal: Stack) -> None:
    async with mortal.client() as client:
        streams = [client.generate([9 + n] * 30, max_output_tokens=1000, ignore_eos=True) for n in range(8)]

        async def worker_of(stream: AsyncEventStream) -> str:
            async for _ in stream.text():
                break
            assert stream.started is not None
            state = await client.get_request(stream.started.request_id)
            assert isinstance(state, Running)
            return state.worker

        where = await asyncio.gather(*map(worker_of, streams))
        assert set(where) == {"worker-0", "worker-1"}
        victim = mortal.process("worker-0")
        victim.kill()
        returning = asyncio.create_task(back(mortal, victim.pid))
        for stream, worker in zip(streams, where, strict=True):
            if worker != "worker-0":
                assert (await stream.completion()).receipt.usage.output_tokens == 1000
                continue
            with pytest.raises(WorkerLost) as caught:
                await stream.completion()
            assert caught.value.code is Code.UNAVAILABLE
            usage = caught.value.detail.usage
            assert usage is not None
            assert usage.prompt_tokens == 30
            assert 1 <= usage.output_tokens < 1000
        await returning
    await at_rest(mortal)


async def back(stack: Stack, old_pid: int) -> None:
    """Wait until both workers are placed on again and one of them is another process."""

    async def is_renewed() -> bool:
        with contextlib.suppress(ProcessLookupError):
            return stack.process("worker-0").pid != old_pid
        return False

    async def num_serving() -> int:
        queue = await stack.queue()
        return sum(worker.granted > worker.placed for worker in queue.workers)

    async with asyncio.timeout(BACK_WITHIN_S):
        await until("worker-0 is another process", is_renewed, limit_s=BACK_WITHIN_S)
        await until("both workers serve", num_serving, limit_s=BACK_WITHIN_S, good=lambda number: number == 2)
