"""A thousand requests that end in every way: afterwards nothing is held anywhere."""

import asyncio
import contextlib
import sys

import pytest

from tests.e2e.leftovers import leftovers
from tests.e2e.stack import Stack
from tests.e2e.storm import Storm
from tests.e2e.waiting import until

NUM_REQUESTS = 1000
ENDS = {"whole", "left", "INVALID_FIELD", "PROMPT_TOO_LONG", "QUOTA_EXCEEDED", "BAD_LOGITS"}
"""How these requests may end; the rest of them within a limit of their own,"""
LATE = {"LIMIT_EXPIRED", "DEADLINE_EXCEEDED"}
"""found expired by a server or by the client itself."""


async def kill_readers(stack: Stack) -> None:
    """Kill client processes that read 20 streams each."""
    for _ in range(4):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.e2e.many_streams"),
            *(f"127.0.0.1:{stack.ports.gateway}", "20", "800"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                assert await process.stdout.readline() == b"reading\n"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.failure("B001", "B002", "B003", "B011", "B016", "B020", "B062", "B125", "B133", "B160")
async def test_nothing_is_left_of_a_thousand_requests_that_end_in_every_way(calm: Stack) -> None:
    storm = Storm(calm, seed=20)
    async with asyncio.timeout(200), asyncio.TaskGroup() as group:
        group.create_task(storm.blow(NUM_REQUESTS))
        group.create_task(kill_readers(calm))
    tally = storm.tally
    assert sum(tally.ends.values()) == NUM_REQUESTS
    assert {name.split(":")[1] for name in tally.ends} <= ENDS | LATE, tally.ends
    assert tally.whole > NUM_REQUESTS / 20
    assert tally.short == 0
    assert tally.of("left") > NUM_REQUESTS / 5
    assert sum(map(tally.of, LATE)) > 10
    assert tally.ends["poison:BAD_LOGITS"] > 10
    assert tally.ends["poison:whole"] == 0
    await until("everything given back", lambda: leftovers(calm), limit_s=60, good=lambda left: not left)
    async with calm.client("red") as client:
        assert (await client.generate_text("Still there?", max_output_tokens=5, ignore_eos=True)).text


@pytest.mark.failure("B003")
async def test_what_is_cancelled_in_the_queue_is_never_computed(calm: Stack) -> None:
    """Seats are taken by 64 long answers; 64 more that wait are cancelled."""

    async def prefilled() -> int:
        return sum(worker.prefill_tokens for worker in await calm.workers())

    async with calm.client() as busy, calm.client() as leaving:
        holders = [busy.generate([3] * 16, max_output_tokens=2000, ignore_eos=True) for _ in range(4)]
        for holder in holders:
            async for _ in holder.text():
                break
        before = await prefilled()
        queued = [leaving.generate([40 + n] * 1500, max_output_tokens=1000) for n in range(64)]
        await until("64 wait", calm.queue, limit_s=60, good=lambda queue: queue.waiting >= 60)
        for stream in queued:
            stream.cancel()
        await until("none waits", calm.queue, limit_s=60, good=lambda queue: queue.waiting == 0)
        after = await prefilled()
        for holder in holders:
            holder.cancel()
    await until("everything given back", lambda: leftovers(calm), limit_s=60, good=lambda left: not left)
    assert after - before <= 4 * 1500
    assert await prefilled() == after
