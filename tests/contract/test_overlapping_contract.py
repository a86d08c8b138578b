"""What executors keep that launch a step while one is under way. One suite, many implementations."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.fakes.contract_executors import (
    EXECUTORS,
    SLOW,
    Sequence,
    batch_of,
    generate,
    ready,
    sequence,
    step,
)
from worker.engine.batch import Batch
from worker.executors.base import Executor, OverlappingExecutor

pytestmark = pytest.mark.timeout(600)
"""The first test of the native executor compiles it."""

OVERLAPPING = [name for name in EXECUTORS if name.startswith(("native", "triton"))]


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in OVERLAPPING]
)
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    yield from ready(request.param, monkeypatch)


def three(first_page: int) -> list[Sequence]:
    """Greedy, drawn, and drawn with log-probabilities."""
    return [
        sequence(1, 5, [first_page], temperature=0.0),
        sequence(2, 17, [first_page + 1, first_page + 2]),
        sequence(3, 9, [first_page + 3], num_logprobs=2),
    ]


def prefilled(executor: Executor, first_page: int) -> list[Sequence]:
    sequences = three(first_page)
    step(executor, [(each, len(each.prompt_ids)) for each in sequences])
    return sequences


def spoil(batch: Batch) -> None:
    """Change what a batch is made of, as taking in the step before does."""
    for array in (batch.ids, batch.positions, batch.context_len, batch.page_table, batch.query_start):
        array[...] = -7
    for row in batch.sampling:
        row.position = -7


def test_steps_that_run_ahead_draw_what_steps_that_wait_draw(executor: Executor) -> None:
    """Six steps, each fed by the one before in another order and launched before that is collected.

    Chunks of a prompt go along, which are known; the last of them gives a token.
    """
    assert isinstance(executor, OverlappingExecutor)
    waiting = prefilled(executor, 1)
    for _ in range(6):
        step(executor, [(each, 1) for each in waiting])
    known = generate(executor, sequence(4, 20, [5, 6]), 1)
    ahead = prefilled(executor, 8)
    prompt = sequence(4, 20, [12, 13])
    batch = batch_of([(each, 1) for each in ahead])
    launched = executor.launch(batch)
    spoil(batch)
    rows = ahead
    for _ in range(5):
        turned = [*rows[1:], rows[0]]
        feeds = [rows.index(each) for each in turned]
        work = [*((each, 1) for each in turned), (prompt, 4)]
        batch = replace(batch_of(work), feeds=np.array(feeds, np.int32))
        behind = executor.launch(batch)
        spoil(batch)
        result = executor.collect(launched)
        assert not result.failed.any()
        for each, token in zip(rows, result.token_ids.tolist(), strict=True):
            each.output_ids.append(token)
        launched, rows = behind, turned
    for each, token in zip([*rows, prompt], executor.collect(launched).token_ids.tolist(), strict=True):
        each.output_ids.append(token)
    assert [each.output_ids for each in ahead] == [each.output_ids for each in waiting]
    assert prompt.output_ids == known


def test_a_row_may_leave_the_step_that_runs_ahead(executor: Executor) -> None:
    assert isinstance(executor, OverlappingExecutor)
    waiting = prefilled(executor, 1)
    for _ in range(2):
        step(executor, [(each, 1) for each in waiting])
    a, b, c = prefilled(executor, 8)
    launched = executor.launch(batch_of([(each, 1) for each in (a, b, c)]))
    behind = executor.launch(replace(batch_of([(c, 1), (a, 1)]), feeds=np.array([2, 0], np.int32)))
    first, second = executor.collect(launched), executor.collect(behind)
    assert first.token_ids.tolist() == [each.output_ids[1] for each in waiting]
    assert second.token_ids.tolist() == [waiting[2].output_ids[2], waiting[0].output_ids[2]]
    assert second.logprobs[0] < 0
    assert first.top[2] is not None
    assert second.top[0] is not None
