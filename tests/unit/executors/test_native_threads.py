"""The thread pool: whole results with more threads than cores, asleep when idle, gone when closed."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.executors.batches import Part, logits_of, make_batch
from tests.unit.executors.native_models import load_native, plan_executor
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder
from worker.executors.base import ExecutorFault
from worker.executors.native_executor import NativeExecutor

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are looked at in /proc"),
]
"""The first test compiles the library."""


def threads() -> dict[int, str]:
    """Return the state of each thread of this process: S sleeps, R runs."""
    states = {}
    for task in os.listdir("/proc/self/task"):
        try:
            stat = Path(f"/proc/self/task/{task}/stat").read_text()
        except FileNotFoundError:
            continue
        states[int(task)] = stat.rpartition(")")[2].split()[0]
    return states


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def table_executor(cache: Path, num_threads: int) -> NativeExecutor:
    table = np.zeros((4, 64), np.float32)
    made = plan_executor(
        lambda g: g.embed("table", vocab_size=4, width=64), {"table": table}, cache, num_threads=num_threads
    )
    made.allocate(200)
    return made


def test_threads_sleep_between_steps_and_end_with_the_executor(tmp_path: Path) -> None:
    before = set(threads())
    executor = table_executor(tmp_path, num_threads=6)
    assert len(set(threads()) - before) == 6
    for _ in range(3):
        logits_of(executor, [Part([0] * 3000, 0, range(188))])
        wait_until(lambda: all(threads()[own] == "S" for own in set(threads()) - before))
    executor.close()
    wait_until(lambda: set(threads()) <= before)
    executor.close()


def test_an_executor_that_is_dropped_ends_its_threads(tmp_path: Path) -> None:
    before = set(threads())
    executor = table_executor(tmp_path, num_threads=4)
    assert set(threads()) > before
    del executor
    wait_until(lambda: set(threads()) <= before)


def test_one_thread_needs_no_helper(tmp_path: Path) -> None:
    before = set(threads())
    executor = table_executor(tmp_path, num_threads=1)
    assert len(set(threads()) - before) == 1
    executor.close()


def test_a_step_that_fails_is_told_after_what_was_done_meanwhile(tmp_path: Path) -> None:
    executor = table_executor(tmp_path, num_threads=2)
    calls: list[str] = []
    with pytest.raises(ExecutorFault, match="an id is not in the vocabulary"):
        executor.execute(make_batch([Part([9], 0, [0])]), lambda: calls.append("meanwhile"))
    assert calls == ["meanwhile"]
    assert executor.execute(make_batch([Part([1], 0, [0])])).failed.tolist() == [False]


def test_nothing_runs_behind_a_step_that_failed_until_that_is_told(tmp_path: Path) -> None:
    executor = table_executor(tmp_path, num_threads=2)
    failing = executor.launch(make_batch([Part([9], 0, [0])]))
    behind = executor.launch(make_batch([Part([1], 0, [0])]))
    for launched in (failing, behind):
        with pytest.raises(ExecutorFault, match="an id is not in the vocabulary"):
            executor.collect(launched)
    assert executor.execute(make_batch([Part([1], 0, [0])])).failed.tolist() == [False]


def test_a_step_is_fed_only_by_rows_that_were_drawn(tmp_path: Path) -> None:
    executor = table_executor(tmp_path, num_threads=2)
    executor.execute(make_batch([Part([1], 0, [0])]))
    for row in (-1, 1):
        fed = replace(make_batch([Part([1], 0, [0])]), feeds=np.array([row], np.int32))
        with pytest.raises(ExecutorFault, match="no such row was drawn"):
            executor.execute(fed)


def test_a_caller_that_fails_meanwhile_still_waits_for_the_step(tmp_path: Path) -> None:
    executor = table_executor(tmp_path, num_threads=2)

    def fail() -> None:
        raise KeyError("a fault of the caller")

    with pytest.raises(KeyError):
        executor.execute(make_batch([Part([0] * 3000, 0, range(188))]), fail)
    assert executor.execute(make_batch([Part([1], 0, [0])])).failed.tolist() == [False]


def test_many_short_steps_on_more_threads_than_cores_are_all_whole(tmp_path: Path) -> None:
    path = save_folder(make_model("llama"), tmp_path / "model")
    ids = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
    expected = None
    for num_threads in (1, 2 * (os.cpu_count() or 1) + 1):
        executor = load_native(path, tmp_path, num_threads=num_threads)
        executor.allocate(3)
        rows = [logits_of(executor, [Part(ids[n : n + 1], n, [0, 1, 2])])[0] for n in range(40)]
        for _ in range(5):
            again = [logits_of(executor, [Part(ids[n : n + 1], n, [0, 1, 2])])[0] for n in range(40)]
            assert np.array_equal(rows, again)
        expected = rows if expected is None else expected
        assert np.array_equal(rows, expected)
        executor.close()
