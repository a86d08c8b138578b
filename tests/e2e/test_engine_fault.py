"""A worker whose device fails: it ends with a typed error, is started again, and callers are told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.client import Delta
from services.domain.errors import Code, ServeError
from tests.e2e.leftovers import leftovers
from tests.e2e.stack import Stack, running
from tests.e2e.stack_setup import Setup
from tests.e2e.waiting import until

CRASH_TOKEN = 30_998


@pytest.fixture
def fragile(model_path: Path, tmp_path: Path) -> Iterator[Stack]:
    """One slow worker whose executor reports what a GPU's does: that nothing more can be computed here."""
    with running(Setup(num_workers=1, step_ms=8.0, crash_token=CRASH_TOKEN), model_path, tmp_path) as stack:
        yield stack


@pytest.mark.slow
@pytest.mark.failure("B164")
async def test_a_worker_whose_device_fails_is_restarted_and_its_requests_follow_the_table(
    fragile: Stack,
) -> None:
    stack = fragile
    async with stack.client() as client:
        old = stack.process("worker-0")
        async with client.generate([5] * 30, max_output_tokens=2000, ignore_eos=True) as stream:
            async for event in stream:
                if isinstance(event, Delta):
                    break
            with pytest.raises(ServeError) as fatal:
                # It has given nothing, so the next boot tries it once more, and fails by it too.
                await client.generate_text([9, CRASH_TOKEN], max_output_tokens=3)
            with pytest.raises(ServeError) as lost:
                await stream.completion()
        for caught in (fatal, lost):
            assert caught.value.code is Code.UNAVAILABLE
        assert lost.value.detail.usage is not None
        assert lost.value.detail.usage.output_tokens > 0, "what it has used so far is told"

        async def served() -> bool:
            try:
                answer = await client.generate_text([1, 2, 3], max_output_tokens=3, ignore_eos=True)
            except ServeError:
                return False
            return answer.receipt.usage.output_tokens == 3

        await until("it serves again", served, limit_s=120)
        assert stack.process("worker-0").pid != old.pid
        await until("nothing is held", lambda: leftovers(stack), limit_s=60, good=lambda left: not left)
    log = (stack.folder / "up.log").read_text()
    assert "the engine failed (ExecutorFault: simulated crash); restart the worker" in log
