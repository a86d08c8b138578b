"""`bench/gpu.sh` runs, line by line: interpreted at tiny shapes, and its worker in native code."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu.budget import Budget
from bench.gpu.comparing import BitsDiffer
from bench.gpu.goals import DECODE_ATTENTION, GOALS, Row
from bench.gpu.results import Run, now, writable
from bench.gpu.running import NotHere, Runner
from bench.gpu.serving import Answer, ServingFault, exercise, serve
from bench.gpu.sizes import TINY
from services.rpc.gateway_values import LastWord
from tests.fakes.bare_machine import make_bare_machine
from worker.kernels import linear_tuning, paged_attention_tuning
from worker.kernels.aot import CHIPS

ROOT = Path(__file__).parents[3]


def gpu_sh(*arguments: str, root: Path = ROOT, **environment: str) -> "subprocess.CompletedProcess[str]":
    environment = {"CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | environment
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [str(root / "bench" / "gpu.sh"), *arguments],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_says_so_in_one_line_and_fails(tmp_path: Path) -> None:
    done = gpu_sh("--out", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("no GPU here: nothing is measured")
    assert not done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at_the_end", ["exit 1", ""])
def test_what_overruns_the_budget_is_cut_with_all_that_it_started(at_the_end: str, tmp_path: Path) -> None:
    """One that ends when it is told to and one that does not: the call returns when none holds its output."""
    hangs = tmp_path / "python"
    hangs.write_text(
        f"#!/usr/bin/env bash\ntrap '{at_the_end}' TERM\nsleep 600 &\nwhile :; do sleep 600; done\n"
    )
    hangs.chmod(0o755)
    done = gpu_sh("--only", "w8a8", "--budget-s", "1", PYTHON=str(hangs))
    assert done.returncode in (124, 137), done.stderr
    assert "cut: longer than 2 s, or killed; what was found until then is kept" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_line_runs_interpreted_and_every_goal_has_its_row(tmp_path: Path) -> None:
    """With nothing but the packages of the machine that has the GPU, and what is brought along to it."""
    root, out = tmp_path / "root", tmp_path / "out"
    root.mkdir()
    hiding = make_bare_machine(root, brings=True)
    done = gpu_sh("--interpret", "--budget-s", "100000", "--out", str(out), root=root, **hiding)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    (path,) = out.glob("*.json")
    kept = json.loads(path.read_text())
    assert kept["failed"] == []
    assert kept["skipped"] == []
    assert set(kept["checks"].values()) == {"ok"}
    untimed = {"w4a16 with zero points, w8a16", "norms of heads, gate and cap", "page copy"}
    untimed.add("steps int8, norms of heads")
    assert untimed <= set(kept["checks"]), "only this shows that they are right on a device"
    assert {row["goal"]["name"] for row in kept["rows"]} == {goal.name for goal in GOALS}
    assert [row["variant"] for row in kept["rows"] if "W4A16" in row["goal"]["name"]] == ["M 1", "M 3"]
    assert kept["machine"]["triton"]
    assert kept["machine"]["linear_tiles"] == linear_tuning.label(CHIPS[0])
    assert kept["machine"]["attention_tiles"] == paged_attention_tuning.label(CHIPS[0])
    assert kept["serving"]["cancel"].endswith(" of 40 tokens, no page held")


@pytest.mark.slow
def test_a_worker_generates_hits_its_prefix_and_drops_what_is_cancelled() -> None:
    long = {**TINY.served.config, "max_position_embeddings": 1 << 15}
    flags = (*TINY.served.flags, "--kv-memory", "64MiB")
    served = replace(TINY.served, executor="native", config=long, num_cancelled=30_000, flags=flags)
    seen = serve(served)
    assert seen["executor"] == "native"
    assert seen["prefix_hit"] == "16 of 20 tokens, same output"
    assert seen["generate"] == "2 tokens"
    assert seen["cancel"].endswith(" of 30000 tokens, no page held")


class StandIn:
    """A client of a worker; it computes one token of a request that is cancelled, or all of them."""

    def __init__(self, *, heeds_cancel: bool) -> None:
        self._heeds_cancel = heeds_cancel
        self._decode_tokens = 0
        self._running = 0
        """Tokens to come of what was submitted."""

    async def complete(self, prompt_ids: Sequence[int], max_output: int) -> Answer:
        answer = Answer()
        answer.cached_tokens = 16
        answer.token_ids = [1] * max_output
        self._decode_tokens += max_output - 1
        return answer

    def submit(self, prompt_ids: Sequence[int], max_output: int) -> tuple[Answer, Any]:
        answer = Answer()
        answer.on_tokens(0, 0, [1], None, None)
        self._running = max_output - 1
        return answer, SimpleNamespace(cancel=self._cancel)

    def _cancel(self, on_last_word: LastWord) -> None:
        if self._heeds_cancel:
            self._running = 0

    async def status(self) -> Any:
        return SimpleNamespace(executor="none", decode_tokens=self._decode_tokens)

    async def wait_idle(self) -> None:
        self._decode_tokens += self._running
        self._running = 0


async def test_a_worker_that_goes_on_after_a_cancel_is_at_fault() -> None:
    """The link hears nothing of it: what the worker has computed says so."""
    served = TINY.served
    seen = await exercise(StandIn(heeds_cancel=True), served)  # type: ignore[arg-type]
    assert seen["cancel"] == "after 1 of 40 tokens, no page held"
    with pytest.raises(ServingFault, match="a cancelled request went on to its end: 40 tokens"):
        await exercise(StandIn(heeds_cancel=False), served)  # type: ignore[arg-type]


def test_what_is_brought_along_is_pinned() -> None:
    packages = (ROOT / "bench" / "gpu" / "packages.txt").read_text().splitlines()
    brought = {line.strip().lower() for line in packages if not line.startswith("#")}
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert brought <= {line.partition("==")[0].lower() for line in pins}


def a_run(folder: Path) -> Run:
    return Run({"chip": "x"}, now(), folder)


def test_parts_that_fail_or_lack_something_are_lines_and_the_next_one_begins(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    clock = iter(range(0, 1000, 10))
    runner = Runner(run, Budget(45.0, lambda: float(next(clock))), only="")
    good = Row(goal=DECODE_ATTENTION, figure=9.0, bound=10.0, unit="GB/s")

    def breaks() -> list[Row]:
        raise ValueError("no such tile")

    def lacks() -> list[Row]:
        raise NotHere("grpc is not here")

    runner.part("first", 5.0, breaks)
    runner.part("second", 5.0, lacks)
    runner.part("third", 1.0, lambda: [good])
    runner.part("last", 5.0, breaks)
    assert run.failed == ["first: ValueError: no such tile"]
    assert [each.line() for each in run.skipped] == [
        "second: not measured: grpc is not here",
        "third: not measured: takes about 1 s, 0 s of 45 s are left",
        "last: not measured: takes about 5 s, 0 s of 45 s are left",
    ]


def test_rows_before_an_error_are_kept(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    good = Row(goal=DECODE_ATTENTION, figure=9.0, bound=10.0, unit="GB/s")

    def breaks_later() -> Iterator[Row]:
        yield good
        raise ValueError("no profiler")

    Runner(run, Budget(45.0, lambda: 0.0), only="").part("first", 5.0, breaks_later)
    assert run.rows == [good]
    assert run.failed == ["first: ValueError: no profiler"]


def test_results_go_elsewhere_where_their_folder_takes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert writable(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "file").write_text("")
    other = writable(tmp_path / "file" / "results")
    assert other.is_dir()
    assert f"results go to {other}" in capsys.readouterr().out
    other.rmdir()


def test_what_is_wrong_is_not_timed_and_what_differs_in_its_last_bits_is(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    runner = Runner(run, Budget(45.0, lambda: 0.0), only="")
    good = Row(goal=DECODE_ATTENTION, figure=9.0, bound=10.0, unit="GB/s")

    def fails(error: Exception) -> None:
        raise error

    runner.check("right", lambda: None)
    (kept,) = tmp_path.glob("*.json")
    assert json.loads(kept.read_text())["checks"] == {"right": "ok"}, "what comes next may hang"
    runner.check("bits", lambda: fails(BitsDiffer("other bits alone")))
    runner.check("wrong", lambda: fails(AssertionError("off by 2")))
    runner.check("broken", lambda: fails(RuntimeError("does not compile")))
    runner.check("absent", lambda: fails(NotHere("grpc is not here")))
    assert run.checks == {
        "right": "ok",
        "bits": "other bits alone",
        "wrong": "AssertionError: off by 2",
        "broken": "RuntimeError: does not compile",
    }
    runner.part("first", 1.0, lambda: [good], rests_on=["right", "bits", "absent"])
    runner.part("second", 1.0, lambda: [good], rests_on=["right", "wrong", "broken"])
    assert run.rows == [good]
    assert run.skipped[-1].line() == "second: not measured: wrong: wrong, broken"
    assert not run.is_good


def test_only_the_parts_that_are_named_are_measured(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    runner = Runner(run, Budget(45.0, lambda: 0.0), only="w4")
    good = Row(goal=DECODE_ATTENTION, figure=9.0, bound=10.0, unit="GB/s")
    runner.part("w4a16", 1.0, lambda: [good])
    runner.part("w8a8", 1.0, lambda: [good])
    runner.part("serving", 100.0, list)
    assert run.rows == [good]
    assert run.is_good, "a worker that nobody asked for is not missed"
