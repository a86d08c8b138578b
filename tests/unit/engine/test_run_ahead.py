"""Steps that are planned while the one before runs: the same tokens and ends, and nothing waits for long."""

import numpy as np
import pytest

from services.domain.generation import FinishReason, SamplingParams
from tests.fakes.engine_harness import engine_config, prompt, submit
from tests.fakes.kv_checking_executor import KvCheckingExecutor
from tests.fakes.overlapping_executor import OverlappingExecutor
from tests.fakes.served import Served
from worker.engine.commands import Cancel, SetSlices, Submit
from worker.engine.outputs import StepOutputs
from worker.executors.base import ExecutorFault
from worker.executors.sim import SimConfig

VOCAB = 40
"""So small that stop ids come often."""


def sim_config(page_size: int = 16) -> SimConfig:
    return SimConfig(vocab_size=VOCAB, time_scale=0, page_size=page_size)


def any_submit(handle: int, rng: np.random.Generator) -> Submit:
    return submit(
        handle,
        [token % VOCAB for token in prompt(int(rng.integers(1, 40)), handle % 7)],
        max_output=int(rng.integers(6, 60)),
        min_output=int(rng.integers(0, 6)) if handle % 3 == 0 else 0,
        stop_ids=rng.integers(0, VOCAB, int(rng.integers(0, 3))).tolist(),
        tenant="ab"[handle % 2],
        n=1 + (handle % 5 == 0),
        sampling=SamplingParams(
            seed=handle,
            num_logprobs=2 if handle % 4 == 0 else None,
            presence_penalty=0.5 if handle % 11 == 0 else 0.0,
        ),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("page_size", "num_pages"), [(16, 64), (16, 16), (32, 24)])
def test_steps_that_run_ahead_change_no_token_and_no_end(seed: int, page_size: int, num_pages: int) -> None:
    """With stop ids, lengths, minima, choices, log-probabilities, penalties, and pools that preempt."""
    config = engine_config(
        num_pages=num_pages, page_size=page_size, max_context_tokens=128, vocab_size=VOCAB, max_sequences=6
    )

    def serve(executor: KvCheckingExecutor) -> Served:
        rng = np.random.default_rng(seed)
        return Served(executor, config, [any_submit(handle, rng) for handle in range(1, 25)]).run()

    overlapping = OverlappingExecutor(sim_config(page_size))
    ours, theirs = serve(overlapping), serve(KvCheckingExecutor(sim_config(page_size)))
    assert ours.tokens == theirs.tokens
    assert ours.reasons == theirs.reasons
    assert {handle: end.usage for handle, end in ours.ended.items()} == {
        handle: end.usage for handle, end in theirs.ended.items()
    }
    assert overlapping.num_ahead > 0 or num_pages < 64, "who waits for pages is looked after in every step"


def test_a_long_decode_runs_ahead_all_the_way_to_its_last_token() -> None:
    """Across pages too: only the step of the first token and that of the last are planned by themselves."""
    executor = OverlappingExecutor(sim_config())
    config = engine_config(vocab_size=VOCAB)
    served = Served(
        executor, config, [submit(1, [1, 2, 3], max_output=50), submit(2, [4], max_output=50)]
    ).run()
    assert [len(served.tokens[handle, 0]) for handle in (1, 2)] == [50, 50]
    assert executor.num_ahead >= 46


def test_a_full_engine_runs_ahead_while_others_wait_for_a_seat() -> None:
    executor = OverlappingExecutor(sim_config())
    config = engine_config(vocab_size=VOCAB, max_sequences=2)
    requests = [submit(handle, [handle, 2], max_output=30) for handle in range(1, 5)]
    served = Served(executor, config, requests).run()
    assert [len(served.tokens[handle, 0]) for handle in range(1, 5)] == [30] * 4
    assert executor.num_ahead >= 40


def test_a_row_that_ended_meanwhile_is_dropped_and_the_others_go_on() -> None:
    stops = [7, 11, 13]
    requests = [submit(1, [1, 2, 3], max_output=40, stop_ids=stops)] + [
        submit(handle, [handle, 5], max_output=60, sampling=SamplingParams(seed=handle))
        for handle in (2, 3, 4)
    ]
    config = engine_config(vocab_size=VOCAB)
    overlapping = OverlappingExecutor(sim_config())
    ours = Served(overlapping, config, requests).run()
    theirs = Served(KvCheckingExecutor(sim_config()), config, requests).run()
    assert ours.tokens == theirs.tokens
    assert ours.reasons[1, 0] is FinishReason.STOP
    assert ours.tokens[1, 0][-1] in stops


def test_a_command_waits_for_two_steps_at_most() -> None:
    executor = OverlappingExecutor(sim_config())
    served = Served(executor, engine_config(vocab_size=VOCAB), [submit(1, [1, 2, 3], max_output=1000)])
    cancelled_at: list[int] = []

    def cancel_later(outputs: StepOutputs) -> None:
        if len(served.tokens[1, 0]) >= 20 and not cancelled_at:
            cancelled_at.append(len(served.tokens[1, 0]))
            served.loop.post(Cancel(1))

    served.on_step = cancel_later
    served.run()
    assert len(served.tokens[1, 0]) <= cancelled_at[0] + 2


def test_nobody_takes_a_page_beyond_a_slice_to_run_ahead() -> None:
    """Tenant a may hold what one of its two sequences needs in the end: the other one yields in a plan."""
    commands = [
        SetSlices({submit(1, [1]).tenant: 6}),
        *(submit(handle, prompt(20, handle % 3), max_output=60) for handle in (1, 2)),
    ]
    config = engine_config()
    executor = OverlappingExecutor(SimConfig(vocab_size=1000, time_scale=0))
    ours = Served(executor, config, commands).run()
    theirs = Served(KvCheckingExecutor(), config, commands).run()
    assert ours.tokens == theirs.tokens
    assert executor.num_ahead > 0


def test_a_device_that_fails_under_two_steps_ends_the_loop() -> None:
    executor = OverlappingExecutor(sim_config())
    served = Served(executor, engine_config(vocab_size=VOCAB), [submit(1, [1, 2, 3], max_output=1000)])

    def fail_later(outputs: StepOutputs) -> None:
        executor.faults.crash = len(served.tokens[1, 0]) >= 10

    served.on_step = fail_later
    with pytest.raises(ExecutorFault, match="simulated crash"):
        served.run()
