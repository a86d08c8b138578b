"""Ranks that have the next step queued while one runs: fed by rank 0, and no further ahead than it is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.domain.generation import SamplingParams
from tests.fakes.engine_harness import engine_config, submit
from tests.fakes.served import Served
from tests.unit.executors.batches import Part, make_batch
from tests.unit.executors.test_ranks import IDS, LIMITS, alone, group
from tests.unit.executors.tiny_models import make_model, save_folder
from worker.engine.batch import Batch, StepResult
from worker.executors.base import ExecutorFault, ModelProfile, OverlappingExecutor, nothing
from worker.executors.ranks.group import OverlappingGroup
from worker.executors.ranks.messages import pack_batch, unpack_batch
from worker.executors.ranks.steps import Steps

pytestmark = pytest.mark.timeout(600)


def test_what_a_step_is_fed_is_the_same_at_the_other_end() -> None:
    batch = make_batch([Part(IDS[:1], 5, [1]), Part(IDS[:3], 17, [4, 2])])
    fed = unpack_batch(bytearray(pack_batch(replace(batch, feeds=np.array([3], np.int32)))))
    assert fed.feeds is not None
    assert fed.feeds.tolist() == [3]
    assert np.array_equal(fed.out_rows, batch.out_rows)
    assert unpack_batch(bytearray(pack_batch(batch))).feeds is None


class Recording:
    """Two steps may be under way, as on a device; notes what it is asked."""

    profile: ModelProfile

    def __init__(self) -> None:
        self.log: list[str] = []
        self.num_launched = 0
        self.fails = False

    def allocate(self, num_pages: int) -> None:
        raise NotImplementedError

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        raise NotImplementedError

    def launch(self, batch: Batch) -> int:
        self.num_launched += 1
        self.log.append(f"launch {self.num_launched}")
        return self.num_launched

    def collect(self, launched: int) -> Any:
        self.log.append(f"collect {launched}")
        if self.fails:
            raise ExecutorFault("a step failed on the device")

    def close(self) -> None:
        raise NotImplementedError


def test_a_follower_launches_as_far_ahead_as_rank_0_does_and_no_further() -> None:
    executor = Recording()
    steps, batch = Steps(executor), make_batch([Part(IDS[:1], 5, [1])])
    assert steps.rest_s is None
    for _ in range(3):
        steps.run(batch)
    assert executor.log == ["launch 1", "launch 2", "collect 1", "launch 3"]
    assert steps.rest_s is not None, "somebody has to look after the last ones"
    steps.finish()
    assert executor.log[4:] == ["collect 2", "collect 3"]
    assert steps.rest_s is None


def test_a_follower_whose_device_failed_says_so_without_a_further_step() -> None:
    executor = Recording()
    steps = Steps(executor)
    steps.run(make_batch([Part(IDS[:1], 5, [1])]))
    executor.fails = True
    with pytest.raises(ExecutorFault, match="failed on the device"):
        steps.finish()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_overlap_their_steps_draw_what_one_process_draws(size: int, tmp_path: Path) -> None:
    """By the step loop: rows fed by rank 0's draws, beside chunks of a longer prompt."""
    model = make_model("llama", vocab_size=208, num_hidden_layers=1, num_key_value_heads=2)
    path = save_folder(model, tmp_path)
    limits = replace(LIMITS, max_step_tokens=16, max_sequences=3)
    config = engine_config(
        num_pages=32,
        vocab_size=208,
        max_context_tokens=limits.max_context_tokens,
        page_size=limits.page_size,
        max_sequences=3,
        max_step_tokens=16,
        max_prefill_tokens=8,
    )
    lengths = {1: (IDS[:3], 10), 2: (IDS[5:35], 4), 3: (IDS[40:45], 6)}
    requests = [
        submit(handle, ids, max_output=most, sampling=SamplingParams(temperature=0.0))
        for handle, (ids, most) in lengths.items()
    ]
    one = alone(path)
    one.close()
    expected = Served(one, config, requests).run()
    assert not isinstance(one, OverlappingExecutor)
    with group(path, size, executor="triton", limits=limits) as made:
        assert isinstance(made, OverlappingGroup)
        made.close()
        fed, launch = [], made.launch

        def noting(batch: Batch) -> Any:
            fed.append(0 if batch.feeds is None else len(batch.feeds))
            return launch(batch)

        made.launch = noting  # type: ignore[method-assign]
        found = Served(made, config, requests).run()
    assert found.tokens == expected.tokens
    assert max(fed) == 3
