"""A worker whose device fails, by process: a typed end, its requests told, no rank left, and up again."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from services.launcher.supervisor import State
from services.launcher.topology import Process
from tests.fakes.failing_device import SAYS, VARIABLE
from tests.integration.test_launcher_supervisor import Stage, pids, until
from tests.integration.test_worker_process import ByPort, WorkerProcess, worker_process
from tests.integration.worker_bench import LIMIT_S, HandGateway
from tests.unit.executors.tiny_models import make_model, save_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
"""Each rank imports torch."""

MODULE = "tests.fakes.failing_device"
PROMPT = list(range(1, 90))
"""Many steps that are not captured: in each of them ranks wait for each other."""


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    shape = {"vocab_size": 208, "num_hidden_layers": 1, "intermediate_size": 64}
    path: Path = save_folder(make_model("llama", **shape), tmp_path_factory.mktemp("model"))
    return (
        *("--executor", "triton", "--model", f"tiny={path}", "--kv-memory", "1MiB", "--max-sequences", "2"),
        *("--max-step-tokens", "16", "--max-prefill-tokens", "8", "--max-context-tokens", "128"),
    )


@pytest.fixture
def trigger(tmp_path: Path) -> Path:
    return tmp_path / "fail"


def failure(stage: str, error: str, trigger: Path, rank: int) -> dict[str, str]:
    told = {"stage": stage, "error": error, "trigger": str(trigger), "in_follower": rank == 1}
    return {VARIABLE: json.dumps(told)}


def arm(trigger: Path) -> None:
    """Let the device fail from its next call on that is meant."""
    trigger.touch()


@contextlib.asynccontextmanager
async def worker(
    flags: tuple[str, ...], environment: dict[str, str], num_ranks: int
) -> AsyncIterator[WorkerProcess]:
    """Run a worker; nothing that it has started is left after it."""
    ranks = ("--tensor-parallel-size", str(num_ranks))
    async with worker_process(*flags, *ranks, module=MODULE, environment=environment) as made:
        yield made
    left = [process for process in psutil.process_iter() if environment[VARIABLE] == told_to(process)]
    _, alive = await asyncio.to_thread(psutil.wait_procs, left, LIMIT_S)
    assert not alive


def told_to(process: psutil.Process) -> str | None:
    """Return what one of our processes is to fail by; None: it is another's, or has ended."""
    with contextlib.suppress(psutil.Error):
        return process.environ().get(VARIABLE)
    return None


def told(line: str, *, num_ranks: int, rank: int, says: str) -> None:
    if rank == 0:
        assert says in line
        assert "rank 1" not in line
    else:
        assert f"rank 1 of {num_ranks}" in line
        assert says in line, "rank 0 says why its other rank ended"


@pytest.mark.parametrize(
    ("num_ranks", "rank", "stage", "error"),
    [
        (1, 0, "upload", "sticky"),
        (1, 0, "replay", "memory"),
        (2, 1, "upload", "memory"),
        (2, 1, "synchronize", "sticky"),
        (2, 0, "replay", "sticky"),
    ],
)
async def test_a_device_that_fails_in_a_step_ends_requests_and_worker_with_one_line(
    flags: tuple[str, ...], trigger: Path, num_ranks: int, rank: int, stage: str, error: str
) -> None:
    async with worker(flags, failure(stage, error, trigger, rank), num_ranks) as made:
        await made.until_ready()
        arm(trigger)
        gateway = HandGateway(ByPort(made.port))
        await gateway.connect()
        ended = await gateway.wait_end(await gateway.submit(prompt_ids=PROMPT, max_output=30))
        assert ended.ended.failure.reason == "WORKER_LOST"
        code, written = await made.end()
        assert code == 4
        last = written.splitlines()[-1]
        assert last.startswith("error: the engine failed (")
        assert last.endswith("; restart the worker")
        told(last, num_ranks=num_ranks, rank=rank, says=f"a step {SAYS[error]}")


@pytest.mark.parametrize(("num_ranks", "rank", "error"), [(1, 0, "memory"), (2, 1, "sticky")])
async def test_a_device_that_fails_while_decode_is_captured_ends_the_start_with_one_line(
    flags: tuple[str, ...], trigger: Path, num_ranks: int, rank: int, error: str
) -> None:
    arm(trigger)
    async with worker(flags, failure("capture", error, trigger, rank), num_ranks) as made:
        code, written = await made.end()
        assert code == 4
        last = written.splitlines()[-1]
        assert last.startswith("error: the first step failed: ")
        assert last.endswith("; lower --kv-memory or look at the device")
        told(last, num_ranks=num_ranks, rank=rank, says=SAYS[error])


async def test_the_supervisor_starts_a_worker_again_whose_device_failed(
    flags: tuple[str, ...], trigger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next boot finds a device that works, and serves."""
    for name, value in failure("synchronize", "sticky", trigger, 0).items():
        monkeypatch.setenv(name, value)
    spec = WorkerProcess(*flags)
    stage = Stage(tmp_path)
    command = (sys.executable, "-m", MODULE, *spec.flags)
    supervisor, running = stage.supervise(
        Process(name="worker-0", command=command, port=spec.port, probe_port=spec.probe_port)
    )
    await asyncio.wait_for(stage.up.wait(), LIMIT_S)
    [first] = pids(supervisor)
    arm(trigger)
    gateway = HandGateway(ByPort(spec.port))
    await gateway.connect()
    lost = await gateway.wait_end(await gateway.submit(prompt_ids=PROMPT, max_output=5))
    assert lost.ended.failure.reason == "WORKER_LOST"
    [child] = supervisor.children
    await until(lambda: child.state is State.UP and pids(supervisor) != [first], LIMIT_S)
    gateway = HandGateway(ByPort(spec.port))
    await gateway.connect()
    served = await gateway.wait_end(await gateway.submit(prompt_ids=PROMPT, max_output=5))
    assert not served.ended.HasField("failure")
    stage.stopping.set()
    await running
    log = (tmp_path / "worker-0.log").read_text()
    assert f"error: the engine failed (ExecutorFault: a step {SAYS['sticky']}); restart the worker" in log
