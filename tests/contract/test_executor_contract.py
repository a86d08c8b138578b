"""What every executor keeps, whatever it computes with. One suite, many implementations."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from services.domain.kv_layout import PAGE_SIZES
from tests.fakes.contract_executors import NUM_PAGES, generate, sequence, sim, step
from worker.executors.base import Executor, ExecutorFault
from worker.executors.sim import SimConfig, SimExecutor, SimFaults

pytestmark = pytest.mark.timeout(600)
"""The first test of the native executor compiles it."""


def test_the_profile_is_complete(executor: Executor) -> None:
    profile = executor.profile
    assert profile.page_size in PAGE_SIZES
    assert profile.vocab_size >= 200
    assert profile.max_context_tokens > 0
    assert profile.model
    assert profile.namespace
    assert profile.numerics
    assert profile.executor


def test_a_step_without_output_rows_draws_nothing(executor: Executor) -> None:
    seq = sequence(1, 30, [3, 4])
    result = step(executor, [(seq, 20)])
    assert len(result.token_ids) == len(result.failed) == len(result.logprobs) == len(result.top) == 0
    assert seq.output_ids == []


def test_what_is_to_be_done_meanwhile_is_done_once_in_each_step(executor: Executor) -> None:
    seq = sequence(1, 30, [3, 4, 5])
    calls: list[int] = []
    expected = list(generate(executor, sequence(1, 30, [6, 7, 8]), 2))
    for number, count in enumerate((20, 10, 1)):
        step(executor, [(seq, count)], lambda number=number: calls.append(number))
    assert calls == [0, 1, 2]
    assert seq.output_ids == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_are_in_the_vocabulary_and_nothing_fails(executor: Executor, temperature: float) -> None:
    ids = generate(executor, sequence(2, 20, [5, 6, 7], temperature=temperature), 12)
    assert all(0 <= token < executor.profile.vocab_size for token in ids)


@pytest.mark.failure("B094")
@pytest.mark.failure("B084")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batched_equals_alone(executor: Executor, temperature: float) -> None:
    lengths = [1, 7, 16, 17, 33]
    alone = [
        generate(executor, sequence(i, n, [0, 1, 2, 3], temperature=temperature), 6)
        for i, n in enumerate(lengths)
    ]
    together = [
        sequence(i, n, [4 * i + k for k in range(4)], temperature=temperature) for i, n in enumerate(lengths)
    ]
    step(executor, [(seq, len(seq.prompt_ids)) for seq in together])
    for _ in range(5):
        step(executor, [(seq, 1) for seq in together])
    assert [seq.output_ids for seq in together] == alone


@pytest.mark.parametrize("chunk", [1, 5, 16, 24])
def test_chunked_equals_whole(executor: Executor, chunk: int) -> None:
    whole = generate(executor, sequence(3, 40, [1, 2, 3]), 5)
    assert generate(executor, sequence(3, 40, [9, 8, 7]), 5, chunk) == whole


def test_a_hit_equals_a_miss(executor: Executor) -> None:
    first = sequence(4, 40, [1, 2, 3])
    whole = list(generate(executor, first, 5))
    second = sequence(4, 40, [1, 2, 10])
    second.num_computed = 32
    assert generate(executor, second, 5) == whole


def test_a_recomputed_sequence_goes_on_as_before(executor: Executor) -> None:
    whole = list(generate(executor, sequence(5, 20, [1, 2, 3]), 12))
    again = sequence(5, 20, [7, 5, 6])
    again.output_ids = whole[:5]
    assert generate(executor, again, 12) == whole


def test_mixed_steps_serve_decode_and_prefill_at_once(executor: Executor) -> None:
    a, b = sequence(6, 20, [1, 2, 3]), sequence(7, 30, [4, 5, 6])
    generate(executor, a, 1)
    step(executor, [(a, 1), (b, 18)])
    step(executor, [(a, 1), (b, 12)])
    assert a.output_ids == generate(executor, sequence(6, 20, [11, 12, 13]), 3)
    assert b.output_ids == generate(executor, sequence(7, 30, [14, 15, 16]), 1)


def test_forbidden_ids_are_not_drawn(executor: Executor) -> None:
    free = generate(executor, sequence(8, 20, [1, 2, 3], temperature=0.0), 1)[0]
    other = sequence(8, 20, [1, 2, 3], frozenset({free}), temperature=0.0)
    assert generate(executor, other, 1)[0] != free


@pytest.mark.failure("B081")
def test_logprobs_come_where_asked_for(executor: Executor) -> None:
    plain, zero, five = (
        sequence(9, 10, [1]),
        sequence(9, 10, [2], num_logprobs=0),
        sequence(9, 10, [3], num_logprobs=5),
    )
    result = step(executor, [(plain, 10), (zero, 10), (five, 10)])
    assert result.logprobs[0] == 0
    assert result.logprobs[1] == result.logprobs[2] < 0
    assert result.top[:2] == (None, None)
    assert result.top[2] is not None
    assert len(result.top[2].token_ids) == len(result.top[2].logprobs) == 5
    assert list(result.top[2].logprobs) == sorted(result.top[2].logprobs, reverse=True)


def test_different_prompts_and_seeds_give_different_tokens() -> None:
    """Only of the sim: a model may well agree with itself."""
    made = sim()
    made.allocate(NUM_PAGES)
    outputs = {tuple(generate(made, sequence(seed, 20, [1, 2, 3]), 8)) for seed in range(10)}
    assert len(outputs) == 10
    prompts = [sequence(1, 20, [1, 2, 3]) for _ in range(5)]
    for i, seq in enumerate(prompts):
        seq.prompt_ids[0] = i
    assert len({tuple(generate(made, seq, 8)) for seq in prompts}) == 5


def test_a_sim_takes_the_time_of_its_cost_model() -> None:
    now = [0.0]
    slept: list[float] = []
    faults = SimFaults(extra_step_s=0.5)
    made = SimExecutor(SimConfig(time_scale=2.0), faults, clock=lambda: now[0], sleep=slept.append)
    made.allocate(NUM_PAGES)
    seq = sequence(1, 40, [1, 2, 3])
    step(made, [(seq, 40)])
    step(made, [(seq, 1)])
    cost = made.config.cost
    assert slept == pytest.approx(
        [
            2 * (cost.seconds(num_prefill_tokens=40, num_decodes=0, decode_context_tokens=0) + 0.5),
            2 * (cost.seconds(num_prefill_tokens=0, num_decodes=1, decode_context_tokens=41) + 0.5),
        ]
    )


def test_a_sim_fails_on_demand() -> None:
    made = SimExecutor(SimConfig(vocab_size=500, time_scale=0), SimFaults(bad_token=499, crash_token=498))
    made.allocate(NUM_PAGES)
    good, bad = sequence(1, 10, [1]), sequence(2, 10, [2])
    bad.prompt_ids[3] = 499
    assert step(made, [(good, 10), (bad, 10)]).failed.tolist() == [False, True]
    dead = sequence(3, 10, [3])
    dead.prompt_ids[5] = 498
    with pytest.raises(ExecutorFault):
        step(made, [(dead, 10)])


def test_a_sim_stalls_on_demand_until_it_is_let_go() -> None:
    made = SimExecutor(SimConfig(vocab_size=500, time_scale=0), SimFaults(stall_token=498))
    made.allocate(NUM_PAGES)
    stuck, later = sequence(1, 10, [1]), sequence(2, 10, [2])
    stuck.prompt_ids[5] = 498
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(step, made, [(stuck, 10)])
        with pytest.raises(TimeoutError):
            hanging.result(0.2)
        made.faults.stall_token = None
        made.faults.running.set()
        assert hanging.result(10).failed.tolist() == [False]
    assert step(made, [(later, 10)]).failed.tolist() == [False]


def test_a_sim_draws_from_its_palette() -> None:
    made = SimExecutor(SimConfig(palette=(7, 11, 13), time_scale=0))
    made.allocate(NUM_PAGES)
    assert set(generate(made, sequence(1, 5, [1, 2]), 20)) == {7, 11, 13}
