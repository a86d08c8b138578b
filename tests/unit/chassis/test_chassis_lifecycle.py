"""Each case is a real process: signals and exits cannot be tried inside the test's own."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest

from services.chassis.lifecycle import EPOCH_OFFSET_VARIABLE, epoch, epoch_offset_ns

PREAMBLE = """
import asyncio, os, sys, time
from services.chassis.fatal import FatalError, entry
from services.chassis.lifecycle import run
from services.chassis.logging import configure_logging

configure_logging("test", level="error" if "quiet" in sys.argv else "info")

def say(text):
    print(text, flush=True)
"""


class Program:
    def __init__(self, source: str, **options: object) -> None:
        text = PREAMBLE + textwrap.dedent(source)
        self.process = subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )  # type: ignore[call-overload]

    def until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == text:
                return
        pytest.fail(f"ended without saying {text!r}: {self.process.stderr.read()}")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=50)
        return self.process.returncode, out, err


@pytest.fixture
def start() -> Iterator[type[Program]]:
    programs: list[Program] = []

    def make(source: str, **options: object) -> Program:
        programs.append(Program(source, **options))
        return programs[-1]

    yield make  # type: ignore[misc]
    for program in programs:
        program.process.kill()
        program.process.communicate()


DRAINS = """
async def main(lifecycle):
    say("up")
    await lifecycle.stopping.wait()
    say("drained")

sys.exit(entry(lambda: run("test", main)))
"""
NEVER_DRAINS = """
async def main(lifecycle):
    say("up")
    await lifecycle.stopping.wait()
    say("draining")
    time.sleep(60) if "block" in sys.argv else await asyncio.sleep(60)

sys.exit(entry(lambda: run("test", main, drain_limit_s=0.3)))
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(start, signum) -> None:
    program = start(DRAINS)
    program.until("up")
    program.process.send_signal(signum)
    assert program.end()[:2] == (0, "drained\n")


def test_the_second_signal_exits_at_once(start) -> None:
    program = start(NEVER_DRAINS.replace("0.3", "60"))
    program.until("up")
    program.process.send_signal(signal.SIGTERM)
    program.until("draining")
    program.process.send_signal(signal.SIGTERM)
    assert program.end()[0] != 0


@pytest.mark.failure("B137")
@pytest.mark.parametrize("block", [False, True], ids=["waiting", "blocked-loop"])
def test_a_drain_that_never_ends_is_cut_at_the_limit(start, block: bool) -> None:
    program = start(NEVER_DRAINS.replace('"block" in sys.argv', str(block)))
    program.until("up")
    program.process.send_signal(signal.SIGTERM)
    assert program.end()[0] != 0


@pytest.mark.failure("B144")
def test_a_failing_background_task_ends_the_process_and_is_logged(start) -> None:
    program = start("""
        async def settle():
            raise RuntimeError("broken")

        async def main(lifecycle):
            lifecycle.spawn(settle(), name="settler")
            await lifecycle.stopping.wait()

        sys.exit(entry(lambda: run("test", main)))
    """)
    code, _, err = program.end()
    assert code == 1
    assert "background_task_failed" in err
    assert "settler" in err


@pytest.mark.failure("B144")
def test_background_tasks_survive_the_garbage_collector(start) -> None:
    program = start("""
        import gc
        done = []

        async def settle(n):
            await asyncio.sleep(0.05)
            done.append(n)

        async def main(lifecycle):
            for n in range(200):
                lifecycle.spawn(settle(n), name="settle")
                gc.collect()
            while len(done) < 200:
                await asyncio.sleep(0.01)
            say("all")

        sys.exit(entry(lambda: run("test", main)))
    """)
    assert program.end()[:2] == (0, "all\n")


def test_main_returning_ends_background_tasks(start) -> None:
    program = start("""
        async def forever():
            try:
                await asyncio.Event().wait()
            finally:
                say("released")

        async def main(lifecycle):
            lifecycle.spawn(forever(), name="forever")
            await asyncio.sleep(0)

        sys.exit(entry(lambda: run("test", main)))
    """)
    assert program.end()[:2] == (0, "released\n")


@pytest.mark.parametrize("where", ["main", "task"])
def test_a_fatal_error_is_one_line_and_its_code(start, where: str) -> None:
    program = start(f"""
        async def fail():
            raise FatalError("the cache is full: free some space")

        async def main(lifecycle):
            if {where!r} == "main":
                await fail()
            lifecycle.spawn(fail(), name="fail")
            await lifecycle.stopping.wait()

        sys.exit(entry(lambda: run("test", main)))
    """)
    assert program.end() == (1, "", "error: the cache is full: free some space\n")


def test_a_process_whose_launcher_died_stops(start) -> None:
    read_end, write_end = os.pipe()
    environ = {**os.environ, "QUIRE_LIFELINE_FD": str(read_end)}
    program = start(DRAINS, pass_fds=(read_end,), env=environ)
    os.close(read_end)
    program.until("up")
    os.close(write_end)
    assert program.end()[:2] == (0, "drained\n")


def test_boots_below_a_launcher_are_in_order_whatever_is_done_to_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(EPOCH_OFFSET_VARIABLE, str(epoch_offset_ns()))
    first = epoch()
    assert abs(first * 1000 - time.time_ns()) < 600 * 10**9, "still a time of day"
    wall_ns = time.time_ns()
    for set_to_ns in (wall_ns + 3600 * 10**9, wall_ns - 3600 * 10**9):
        monkeypatch.setattr(time, "time_ns", lambda set_to_ns=set_to_ns: set_to_ns)
        assert first <= epoch() < first + 600 * 10**6


def test_a_stopped_process_notices_that_it_woke_up(start) -> None:
    program = start("""
        from services.chassis import lifecycle as module
        module.DEAD_AFTER_S, module.TICK_S = 0.4, 0.05

        async def main(lifecycle):
            before = lifecycle.epoch
            woken = asyncio.Event()
            lifecycle.on_wake(lambda gap: woken.set())
            say("up")
            await woken.wait()
            assert lifecycle.epoch > before
            say("woke")

        sys.exit(entry(lambda: run("test", main)))
    """)
    program.until("up")
    program.process.send_signal(signal.SIGSTOP)
    time.sleep(0.8)  # The length of the stop is what is tested.
    program.process.send_signal(signal.SIGCONT)
    assert program.end()[:2] == (0, "woke\n")
