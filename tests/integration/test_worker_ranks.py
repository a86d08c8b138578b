"""A worker of several ranks: one worker for everybody else, and none of its processes outlives the rest."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from protos.types.v1 import types_pb2
from tests.integration.test_worker_process import ByPort, WorkerProcess, worker_process
from tests.integration.worker_bench import LIMIT_S, HandGateway
from tests.unit.executors.tiny_models import make_model, save_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
"""Each rank imports torch."""


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path: Path = save_folder(make_model("llama", vocab_size=208), tmp_path_factory.mktemp("model"))
    return ("--model", f"tiny={path}", "--kv-memory", "1MiB", "--threads", "1")


@asynccontextmanager
async def ranks(
    flags: tuple[str, ...], size: int
) -> AsyncIterator[tuple[WorkerProcess, list[psutil.Process]]]:
    """Run a worker of `size` ranks; yield it and the processes of the others, none of which is left after."""
    async with worker_process(*flags, "--executor", "torch", "--tensor-parallel-size", str(size)) as worker:
        await worker.until_ready()
        others = psutil.Process(worker.process.pid).children(recursive=True)
        assert len(others) == size - 1
        yield worker, others
        if worker.process.returncode is None:
            worker.process.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, others, LIMIT_S)
        assert not alive


async def connected(worker: WorkerProcess) -> HandGateway:
    gateway = HandGateway(ByPort(worker.port))
    await gateway.connect()
    return gateway


async def test_a_group_answers_as_one_process_does_and_ends_with_it(flags: tuple[str, ...]) -> None:
    answers = []
    for size in (1, 2):
        async with ranks(flags, size) as (worker, _):
            gateway = await connected(worker)
            handle = await gateway.submit(
                prompt_ids=list(range(5, 45)),
                max_output=20,
                sampling=types_pb2.Sampling(top_p=1, repetition_penalty=1),
            )
            await gateway.wait_end(handle)
            answers.append(gateway.tokens[handle, 0])
            worker.process.send_signal(signal.SIGTERM)
            code, _ = await worker.end()
            assert code == 0
    assert len(answers[0]) == 20
    assert answers[0] == answers[1]


async def test_a_killed_rank_ends_requests_and_worker_with_one_line(flags: tuple[str, ...]) -> None:
    async with ranks((*flags, "--stuck-after-s", "0.2"), 2) as (worker, others):
        gateway = await connected(worker)
        # Stopped first, so that the request cannot end before the rank is killed.
        os.kill(others[0].pid, signal.SIGSTOP)
        handle = await gateway.submit(prompt_ids=[1, 2, 3], max_output=400)
        async with asyncio.timeout(LIMIT_S):
            while (await asyncio.to_thread(worker.probe, "/readyz"))[0] != 503:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        os.kill(others[0].pid, signal.SIGKILL)
        failure = (await gateway.wait_end(handle)).ended.failure
        assert failure.reason == "WORKER_LOST"
        code, written = await worker.end()
        assert code == 4
        last = written.splitlines()[-1]
        assert last == (
            "error: the engine failed (RankLost: rank 1 of 2 ended (SIGKILL)); restart the worker"
        )


async def test_an_idle_worker_notices_that_a_rank_is_gone(flags: tuple[str, ...]) -> None:
    async with ranks(flags, 2) as (worker, others):
        os.kill(others[0].pid, signal.SIGKILL)
        code, written = await worker.end()
        assert code == 4
        assert "rank 1 of 2 ended (SIGKILL)" in written.splitlines()[-1]


async def test_ranks_do_not_outlive_a_killed_worker(flags: tuple[str, ...]) -> None:
    async with ranks(flags, 2) as (worker, others):
        assert all(other.is_running() for other in others)
        worker.process.kill()
