"""A process that is stopped for ten seconds, as by a hypervisor, and woken: nothing is harmed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psutil
import pytest

from services.client import AsyncEventStream
from services.domain.errors import Code, ServeError
from tests.e2e.callers import Callers
from tests.e2e.leftovers import leftovers
from tests.e2e.stack import Stack
from tests.e2e.waiting import until

STOPPED_S = 10.0
EXPECTED = {"WORKER_LOST", "NO_WORKER", "STALE_ATTEMPT"}
"""What callers may be told while a process does not run."""


@contextlib.asynccontextmanager
async def stopped(process: psutil.Process) -> AsyncIterator[None]:
    """Stop a process for the time of the block."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@pytest.mark.slow
@pytest.mark.failure("B029")
@pytest.mark.parametrize("name", ["scheduler", "kvmanager", "worker-0", "gateway"])
async def test_a_process_that_sleeps_and_wakes_harms_nothing(mortal: Stack, name: str) -> None:
    pid = mortal.process(name).pid
    async with mortal.client() as client, Callers([client], 24, 30) as callers:
        async with stopped(mortal.process(name)):
            await asyncio.sleep(STOPPED_S)
        woke = callers.num_whole

        async def num_since() -> int:
            return callers.num_whole - woke

        await until("answers come again", num_since, limit_s=60, good=lambda number: number >= 48)
    assert callers.num_wrong == 0
    assert {error.reason for error in (*callers.failed, *callers.refused)} <= EXPECTED
    assert mortal.process(name).pid == pid
    await until("everything given back", lambda: leftovers(mortal), limit_s=60, good=lambda left: not left)


@pytest.mark.slow
@pytest.mark.failure("B164")
async def test_callers_of_a_stopped_worker_get_errors_and_others_are_served(mortal: Stack) -> None:
    async with mortal.client() as client:
        streams = [client.generate([9 + n] * 30, max_output_tokens=800, ignore_eos=True) for n in range(6)]
        for stream in streams:
            async for _ in stream.text():
                break
        async with stopped(mortal.process("worker-1")):
            await until(
                "the scheduler has given it up",
                mortal.queue,
                limit_s=60,
                good=lambda queue: [worker.name for worker in queue.workers] == ["worker-0"],
            )
            ends = await asyncio.wait_for(asyncio.gather(*map(end_of, streams)), 60)
            assert {str(end) for end in ends} == {"whole", str(Code.UNAVAILABLE)}
            assert (await client.generate_text("Here?", max_output_tokens=3)).receipt.worker == "worker-0"
    await until("everything given back", lambda: leftovers(mortal), limit_s=60, good=lambda left: not left)


async def end_of(stream: AsyncEventStream) -> Code | str:
    """Return how a stream ends."""
    try:
        await stream.completion()
    except ServeError as error:
        return error.code
    return "whole"


@pytest.mark.slow
async def test_pages_of_a_stopped_gateway_are_free_once_it_counts_as_dead(mortal: Stack) -> None:
    async with mortal.client() as client:
        streams = [client.generate([9 + n] * 100, max_output_tokens=2000, ignore_eos=True) for n in range(6)]
        for stream in streams:
            async for _ in stream.text():
                break
        async with stopped(mortal.process("gateway")):
            await until(
                "no page is held",
                mortal.workers,
                limit_s=60,
                good=lambda workers: sum(worker.held_pages for worker in workers) == 0,
            )
        ends = await asyncio.wait_for(asyncio.gather(*map(end_of, streams)), 60)
        assert set(ends) == {Code.UNAVAILABLE}
    await until("everything given back", lambda: leftovers(mortal), limit_s=60, good=lambda left: not left)
