"""Steps that are planned while the one before runs: the same tokens and ends, and nothing waits for long."""

from dataclasses import replace

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
        [token % VOCAB for token in prompt(int(rng.integers(1, 60)), handle % 7)],
        max_output=int(rng.integers(1 if handle % 3 else 6, 60)),
        min_output=int(rng.integers(0, 6)) if handle % 3 == 0 else 0,
        stop_ids=rng.integers(0, VOCAB, int(rng.integers(0, 3))).tolist(),
        tenant="ab"[handle % 2],
        n=1 + (handle % 5 == 0),
        sampling=SamplingParams(
            seed=handle,
            num_logprobs=2 if handle % 4 == 0 else None,
            presence_penalty=0.5 if handle % 11 == 0 else 0.0,
        ),
        num_prompt_logprobs=1 if handle % 13 == 0 else None,
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("page_size", "num_pages"), [(16, 64), (16, 16), (32, 24)])
def test_steps_that_run_ahead_change_no_token_and_no_end(seed: int, page_size: int, num_pages: int) -> None:
    """With stop ids, lengths, minima, choices, scores, penalties, chunks, and pools that preempt."""
    config = engine_config(
        num_pages=num_pages,
        page_size=page_size,
        max_context_tokens=128,
        vocab_size=VOCAB,
        max_sequences=6,
        max_prefill_tokens=12,
    )

    def serve(executor: KvCheckingExecutor) -> Served:
        rng = np.random.default_rng(seed)
        return Served(executor, config, [any_submit(handle, rng) for handle in range(1, 25)]).run()

    overlapping = OverlappingExecutor(sim_config(page_size))
    ours, theirs = serve(overlapping), serve(KvCheckingExecutor(sim_config(page_size)))
    assert ours.tokens == theirs.tokens
    assert ours.reasons == theirs.reasons
    # Who starts a step later may find in the cache what was computed in that step.
    ours_used, theirs_used = (
        {handle: replace(end.usage, cached_tokens=0) for handle, end in served.ended.items()}
        for served in (ours, theirs)
    )
    assert ours_used == theirs_used
    assert ours.logprobs == theirs.logprobs
    if num_pages == 64:
        # Of a small pool somebody mostly waits for pages, which is looked after in every step.
        assert overlapping.num_ahead > overlapping.num_ahead_with_prompts > 0


def test_prompts_are_computed_chunk_by_chunk_beside_decode_without_waiting() -> None:
    """Further chunks of the long prompt, its first token and what follows it, while another one generates."""
    config = engine_config(vocab_size=VOCAB, max_prefill_tokens=16, max_sequences=2)
    requests = [
        submit(1, [1, 2, 3], max_output=30),
        submit(2, [token % VOCAB for token in prompt(100, 2)], max_output=30),
    ]
    executor = OverlappingExecutor(sim_config())
    ours = Served(executor, config, requests).run()
    theirs = Served(KvCheckingExecutor(sim_config()), config, requests).run()
    assert ours.tokens == theirs.tokens
    assert executor.num_ahead_with_prompts >= 3
    # Of all steps only the first was planned with nothing before it.
    assert len(executor.batch_sizes) - executor.num_ahead == 1


def test_a_prompt_that_is_alone_needs_no_token_to_go_on() -> None:
    executor = OverlappingExecutor(sim_config())
    config = engine_config(vocab_size=VOCAB, max_step_tokens=16, max_prefill_tokens=16, max_sequences=1)
    served = Served(executor, config, [submit(1, [3] * 100, max_output=1)]).run()
    assert len(served.tokens[1, 0]) == 1
    assert (executor.num_ahead, len(executor.batch_sizes)) == (6, 7)


def test_whoever_may_still_come_is_held_up_by_one_chunk_of_a_prompt_not_by_two() -> None:
    """With a seat left no chunk is launched behind another; what follows the last one is."""
    executor = OverlappingExecutor(sim_config())
    config = engine_config(vocab_size=VOCAB, max_step_tokens=16, max_prefill_tokens=16, max_sequences=2)
    served = Served(executor, config, [submit(1, [3] * 100, max_output=5)]).run()
    assert len(served.tokens[1, 0]) == 5
    assert executor.num_ahead_with_prompts == 0
    assert (executor.num_ahead, len(executor.batch_sizes)) == (4, 11)


def test_who_reaches_its_length_is_left_out_of_the_step_behind() -> None:
    """Others need not wait for it: what it is going to draw is its last token, whichever it is."""
    executor = OverlappingExecutor(sim_config())
    requests = [submit(handle, [handle], max_output=handle * 3) for handle in range(1, 6)]
    served = Served(executor, engine_config(vocab_size=VOCAB), requests).run()
    assert [len(served.tokens[handle, 0]) for handle in range(1, 6)] == [3, 6, 9, 12, 15]
    assert len(executor.batch_sizes) - executor.num_ahead == 1
    assert executor.batch_sizes == [5] * 3 + [4] * 3 + [3] * 3 + [2] * 3 + [1] * 3


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param({"min_output": 2, "max_output": 4}, id="its minimum of tokens"),
        pytest.param({"sampling": SamplingParams(presence_penalty=0.5), "max_output": 3}, id="a penalty"),
        pytest.param({"num_prompt_logprobs": 0, "max_output": 3}, id="scores of its prompt"),
    ],
)
def test_what_a_token_may_change_is_planned_when_it_is_known(waits: dict[str, object]) -> None:
    executor = OverlappingExecutor(sim_config())
    config = engine_config(vocab_size=VOCAB, max_prefill_tokens=16, max_step_tokens=16)
    served = Served(executor, config, [submit(1, [5] * 40, **waits)]).run()  # type: ignore[arg-type]
    assert len(served.tokens[1, 0]) == waits["max_output"]
    assert len(executor.batch_sizes) - executor.num_ahead > 1


def test_a_prompt_that_fails_beside_steps_that_run_ahead_ends_alone() -> None:
    executor = OverlappingExecutor(sim_config())
    executor.faults.bad_token = 9
    config = engine_config(vocab_size=VOCAB, max_prefill_tokens=16, max_sequences=2)
    requests = [submit(1, [1, 2, 3], max_output=40), submit(2, [9] * 100, max_output=40)]
    served = Served(executor, config, requests).run()
    assert len(served.tokens[1, 0]) == 40
    assert not served.tokens[2, 0]
    assert served.ended[2].error is not None
    assert executor.num_ahead_with_prompts > 0


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


def test_a_cancel_beside_a_long_prompt_waits_for_two_steps_at_most() -> None:
    executor = OverlappingExecutor(sim_config())
    config = engine_config(
        vocab_size=VOCAB, max_prefill_tokens=8, max_context_tokens=4096, num_pages=300, max_sequences=2
    )
    served = Served(
        executor, config, [submit(1, [1, 2, 3], max_output=1000), submit(2, [4] * 4000, max_output=1)]
    )
    cancelled_at: list[int] = []

    def cancel_later(outputs: StepOutputs) -> None:
        if len(served.tokens[1, 0]) >= 20 and not cancelled_at:
            cancelled_at.append(len(served.tokens[1, 0]))
            for handle in (1, 2):
                served.loop.post(Cancel(handle))

    served.on_step = cancel_later
    served.run()
    assert len(served.tokens[1, 0]) <= cancelled_at[0] + 2
    assert executor.num_ahead_with_prompts > 0
    assert not served.tokens[2, 0]


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
