"""A worker whose step does not end: not ready, then restarted; its callers are told."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from services.domain.errors import Code, ServeError
from tests.e2e.leftovers import leftovers
from tests.e2e.stack import Stack, running
from tests.e2e.stack_setup import Setup
from tests.e2e.waiting import until


@pytest.fixture
def slow_prefill(model_path: Path, tmp_path: Path) -> Iterator[Stack]:
    """One worker whose prefill takes a second for 20 tokens: a long prompt is a step that hangs."""
    setup = Setup(num_workers=1, prefill=20.0, stuck_after_s=1.0, restart_after_s=3.0)
    with running(setup, model_path, tmp_path) as stack:
        yield stack


@pytest.mark.slow
@pytest.mark.failure("B164")
async def test_a_worker_that_hangs_is_not_ready_and_is_restarted(slow_prefill: Stack) -> None:
    stack = slow_prefill

    async def is_ready() -> bool:
        return await asyncio.to_thread(_is_ready, stack.probe_port("worker-0"))

    async with stack.client() as client:
        assert (await client.generate_text([1, 2, 3], max_output_tokens=3, ignore_eos=True)).receipt
        assert await is_ready()
        old = stack.process("worker-0")
        task = asyncio.create_task(client.generate_text([9] * 200, max_output_tokens=3))
        await until("not ready", is_ready, limit_s=60, good=lambda ready: not ready)
        with pytest.raises(ServeError) as caught:
            # It is tried once more, by the next boot, which hangs too.
            await asyncio.wait_for(task, 60)
        assert caught.value.code is Code.UNAVAILABLE
        await until("restarted", is_ready, limit_s=60)
        assert stack.process("worker-0").pid != old.pid
        await until("nothing is held", lambda: leftovers(stack), limit_s=60, good=lambda left: not left)
        assert (await client.generate_text([1, 2, 3], max_output_tokens=3, ignore_eos=True)).receipt


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20):
            return True
    except HTTPError as error:
        error.close()
        return False
