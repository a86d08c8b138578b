"""The supervisor with small stand-in services: real processes, real signals, no models."""

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from services.launcher.board import PlainBoard
from services.launcher.supervisor import StartFailed, State, Supervisor
from services.launcher.topology import Process
from tests.conftest import free_port

SERVICE = """
import asyncio, os, sys
from services.chassis.fatal import FatalError, entry
from services.chassis.grpc import add_health_and_reflection, bind, create_server
from services.chassis.lifecycle import run
from services.chassis.probes import Probes

port, probe_port, mode, marks = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]

async def main(lifecycle):
    with open(marks, "a") as file:
        file.write(f"start {lifecycle.epoch}\\n")
    if mode == "broken":
        raise FatalError("the model file is damaged: fetch it again")
    server = create_server()
    health = add_health_and_reflection(server, [])
    bind(server, f"127.0.0.1:{port}")
    await server.start()
    health.set_serving()
    async with Probes(probe_port, is_ready=lambda: True):
        await lifecycle.stopping.wait()
    await server.stop(0)
    with open(marks, "a") as file:
        file.write("end\\n")

sys.exit(entry(lambda: run("stand-in", main, drain_limit_s=5)))
"""


class Stage:
    """Makes stand-in services and runs a supervisor over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.up = asyncio.Event()
        self.stopping = asyncio.Event()

    def service(self, name: str, mode: str = "well", needs: tuple[str, ...] = ()) -> Process:
        port, probe_port = free_port(), free_port()
        command = (sys.executable, "-c", SERVICE, str(port), str(probe_port), mode, str(self.marks(name)))
        return Process(name=name, command=command, port=port, probe_port=probe_port, needs=needs)

    def marks(self, name: str) -> Path:
        return self.folder / f"{name}.marks"

    def supervise(self, *specs: Process) -> tuple[Supervisor, asyncio.Task[None]]:
        board = PlainBoard(Console(file=(self.folder / "board").open("w"), highlight=False))
        supervisor = Supervisor(specs, self.folder, board)
        return supervisor, asyncio.create_task(supervisor.run(self.up, self.stopping))


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the state did not come"
        await asyncio.sleep(0.02)


def pids(supervisor: Supervisor) -> list[int]:
    return [child.process.pid for child in supervisor.children if child.process is not None]


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def another_is_up(supervisor: Supervisor, first: int) -> None:
    """Wait until the only child is another process than `first`; on a starved machine not only the second."""
    [child] = supervisor.children
    await until(lambda: child.num_restarts > 0 and child.state is State.UP and pids(supervisor) != [first])


async def test_all_come_up_and_end_in_order_with_none_left(stage: Stage) -> None:
    supervisor, running = stage.supervise(
        stage.service("kvmanager"), stage.service("gateway", needs=("kvmanager",))
    )
    await asyncio.wait_for(stage.up.wait(), 60)
    started = pids(supervisor)
    stage.stopping.set()
    await running
    assert [child.process.returncode for child in supervisor.children if child.process] == [0, 0]
    assert not any(map(alive, started))
    ends = {name: stage.marks(name).stat().st_mtime_ns for name in ("gateway", "kvmanager")}
    assert ends["gateway"] < ends["kvmanager"]


async def test_a_failure_while_starting_is_one_line_and_leaves_nothing(stage: Stage) -> None:
    supervisor, running = stage.supervise(stage.service("kvmanager"), stage.service("worker-0", "broken"))
    with pytest.raises(StartFailed, match="worker-0: the model file is damaged: fetch it again") as caught:
        await asyncio.wait_for(running, 60)
    assert "\n" not in str(caught.value)
    assert not any(map(alive, pids(supervisor)))


async def test_a_died_service_is_started_again_as_a_later_boot(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.launcher.supervisor.epoch_offset_ns", lambda: 3 * 10**18)
    supervisor, running = stage.supervise(stage.service("worker-0"))
    await asyncio.wait_for(stage.up.wait(), 60)
    [first] = pids(supervisor)
    os.kill(first, signal.SIGKILL)
    await another_is_up(supervisor, first)
    stage.stopping.set()
    await running
    first_epoch, second_epoch = (
        int(line.split()[1]) for line in stage.marks("worker-0").read_text().splitlines() if line != "end"
    )
    assert 3 * 10**15 < first_epoch < second_epoch, "by the launcher's clock"


async def test_a_frozen_service_is_killed_and_started_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.launcher.supervisor.LIVENESS_PERIOD_S", 0.05)
    monkeypatch.setattr("services.launcher.supervisor.LIVENESS_FAILURES", 2)
    monkeypatch.setattr("services.launcher.health._LIMIT_S", 0.5)
    supervisor, running = stage.supervise(stage.service("worker-0"))
    await asyncio.wait_for(stage.up.wait(), 60)
    [first] = pids(supervisor)
    os.kill(first, signal.SIGSTOP)
    await another_is_up(supervisor, first)
    stage.stopping.set()
    await running


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_survives_the_launcher(stage: Stage, signum: signal.Signals) -> None:
    services = [stage.service("kvmanager"), stage.service("gateway")]
    redis_port = free_port()
    source = f"""
        import asyncio, signal, sys
        from pathlib import Path
        from rich.console import Console
        from services.launcher.board import PlainBoard
        from services.launcher.supervisor import Supervisor
        from services.launcher.topology import Health, Process
        from services.launcher.up import find_redis

        async def main():
            redis = Process(name="redis", port={redis_port}, health=Health.REDIS, command=(
                sys.executable, "-m", "services.launcher.guard", find_redis(), "--port", "{redis_port}",
                "--save", "", "--dir", {str(stage.folder)!r}))
            specs = [redis] + [Process(name=n, command=c, port=p, probe_port=q) for n, c, p, q in
                {[(s.name, s.command, s.port, s.probe_port) for s in services]!r}]
            up, stopping = asyncio.Event(), asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
            board = PlainBoard(Console(stderr=True))
            supervisor = Supervisor(specs, Path({str(stage.folder)!r}), board)
            running = asyncio.create_task(supervisor.run(up, stopping))
            await up.wait()
            print("up", flush=True)
            await running

        asyncio.run(main())
    """
    launcher = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(source), stdout=asyncio.subprocess.PIPE
    )
    assert launcher.stdout is not None
    assert await asyncio.wait_for(launcher.stdout.readline(), 60) == b"up\n"
    family = psutil.Process(launcher.pid).children(recursive=True)
    assert len(family) == 4  # Redis and its guard, two services.
    launcher.send_signal(signum)
    await launcher.wait()
    await until(lambda: not any(alive(process.pid) for process in family))
