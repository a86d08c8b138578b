"""What every executor keeps, whatever it computes with. One suite, many implementations.

An implementation joins by adding a factory to `EXECUTORS`; it gives an executor with a vocabulary of at least
200 ids whose memory is not allocated yet.
"""

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from services.domain.generation import SamplingParams
from services.domain.kv_layout import KvFormat
from worker.engine.batch import Batch, SampleRow, StepResult, TopLogprobs
from worker.executors.base import Executor, ExecutorFault
from worker.executors.native.library import Compute
from worker.executors.sim import SimConfig, SimExecutor, SimFaults

PAGE = 16
NUM_PAGES = 32

pytestmark = pytest.mark.timeout(600)
"""The first test of the native executor compiles it."""


def sim() -> Executor:
    return SimExecutor(SimConfig(vocab_size=500, time_scale=0))


def tiny_torch() -> Executor:
    # Imports of seconds, which the other implementations do not need.
    from tests.unit.executors.tiny_models import make_model, save_folder
    from worker.executors.torch_executor import load_torch_executor

    with tempfile.TemporaryDirectory() as folder:
        path = save_folder(make_model("llama", vocab_size=256), Path(folder))
        return load_torch_executor(path, model_name="tiny", num_threads=1)


def tiny_native(
    kv_format: KvFormat = KvFormat.F32, compute: Compute = Compute.F32, kind: str = ""
) -> Executor:
    from tests.unit.executors.native_models import load_native
    from tests.unit.executors.tiny_models import make_model, save_folder, save_gguf

    model = make_model("llama", vocab_size=256)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = save_gguf(model, folder / "tiny.gguf", kind) if kind else save_folder(model, folder / "model")
        return load_native(path, folder, kv_format=kv_format, compute=compute, num_threads=2)


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "sim": sim,
    "torch": tiny_torch,
    "native": tiny_native,
    "native-bf16": partial(tiny_native, KvFormat.BF16, Compute.F32, "F16"),
    "native-int8": partial(tiny_native, KvFormat.INT8, Compute.INT8, "Q4_0"),
}


@pytest.fixture(params=list(EXECUTORS))
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    made = EXECUTORS[request.param]()
    made.allocate(NUM_PAGES)
    yield made
    made.close()


class Sequence:
    """One sequence with pages of its own."""

    def __init__(
        self, prompt_ids: list[int], pages: list[int], params: SamplingParams, forbidden: frozenset[int]
    ) -> None:
        self.prompt_ids = prompt_ids
        self.output_ids: list[int] = []
        self.pages = pages
        self.params = params
        self.forbidden = forbidden
        self.num_computed = 0

    def tokens(self) -> list[int]:
        return [*self.prompt_ids, *self.output_ids]

    def row(self) -> SampleRow:
        return SampleRow(
            params=self.params,
            choice=0,
            position=len(self.output_ids),
            prompt_ids=self.prompt_ids,
            output_ids=list(self.output_ids),
            forbidden_ids=self.forbidden,
        )


def sequence(
    seed: int, length: int, pages: list[int], forbidden: frozenset[int] = frozenset(), **params: object
) -> Sequence:
    ids = np.random.default_rng(seed).integers(0, 200, length).tolist()
    return Sequence(ids, pages, SamplingParams(seed=seed, **params), forbidden)  # type: ignore[arg-type]


def step(executor: Executor, work: list[tuple[Sequence, int]]) -> StepResult:
    """Compute the next `count` tokens of each sequence, and append what is drawn."""
    ids: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    for seq, count in work:
        ids += seq.tokens()[seq.num_computed : seq.num_computed + count]
        positions += range(seq.num_computed, seq.num_computed + count)
        seq.num_computed += count
        ends.append(len(ids))
    sampled = [i for i, (seq, _) in enumerate(work) if seq.num_computed == len(seq.tokens())]
    width = max(len(seq.pages) for seq, _ in work)
    table = np.zeros((len(work), width), np.int32)
    for i, (seq, _) in enumerate(work):
        table[i, : len(seq.pages)] = seq.pages
    result = executor.execute(
        Batch(
            ids=np.array(ids, np.int32),
            positions=np.array(positions, np.int32),
            query_start=np.array([0, *ends], np.int32),
            context_len=np.array([seq.num_computed for seq, _ in work], np.int32),
            page_table=table,
            out_rows=np.array([ends[i] - 1 for i in sampled], np.int32),
            sampling=tuple(work[i][0].row() for i in sampled),
        )
    )
    for i, token in zip(sampled, result.token_ids.tolist(), strict=True):
        work[i][0].output_ids.append(token)
    return result


def generate(executor: Executor, seq: Sequence, count: int, chunk: int = 1000) -> list[int]:
    while len(seq.output_ids) < count:
        step(executor, [(seq, min(chunk, len(seq.tokens()) - seq.num_computed))])
    return seq.output_ids


def test_the_profile_is_complete(executor: Executor) -> None:
    profile = executor.profile
    assert profile.page_size == PAGE
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


def scores(
    executor: Executor, work: list[Sequence], chunk: int = 1000, num_top: int = 2
) -> list[list[tuple[float, TopLogprobs | None]]]:
    """Score all tokens but the first of each prompt, in chunks, all of them in the same steps."""
    params = SamplingParams(temperature=0, num_logprobs=num_top)
    found: list[list[tuple[float, TopLogprobs | None]]] = [[] for _ in work]
    while any(seq.num_computed < len(seq.prompt_ids) for seq in work):
        ids, positions, ends, out_rows, targets, owners = [], [], [], [], [], []
        live = [i for i, seq in enumerate(work) if seq.num_computed < len(seq.prompt_ids)]
        for i in live:
            prompt, start = work[i].prompt_ids, work[i].num_computed
            work[i].num_computed = end = min(start + chunk, len(prompt))
            scored = range(start, min(end, len(prompt) - 1))
            out_rows += [len(ids) + place - start for place in scored]
            targets += [prompt[place + 1] for place in scored]
            owners += [i] * len(scored)
            ids += prompt[start:end]
            positions += range(start, end)
            ends.append(len(ids))
        table = np.zeros((len(live), max(len(work[i].pages) for i in live)), np.int32)
        for row, i in enumerate(live):
            table[row, : len(work[i].pages)] = work[i].pages
        sample_row = SampleRow(params=params, choice=0, position=0, prompt_ids=(), output_ids=())
        result = executor.execute(
            Batch(
                ids=np.array(ids, np.int32),
                positions=np.array(positions, np.int32),
                query_start=np.array([0, *ends], np.int32),
                context_len=np.array([work[i].num_computed for i in live], np.int32),
                page_table=table,
                out_rows=np.array(out_rows, np.int32),
                sampling=(sample_row,) * len(out_rows),
                targets=np.array(targets, np.int32),
            )
        )
        assert result.token_ids.tolist() == targets
        for owner, logprob, top in zip(owners, result.logprobs.tolist(), result.top, strict=True):
            found[owner].append((logprob, top))
    return found


def test_a_scored_token_has_the_log_probability_that_a_drawn_one_has(executor: Executor) -> None:
    drawing = sequence(10, 30, [1, 2, 3], temperature=0.0, num_logprobs=2)
    result = step(executor, [(drawing, 30)])
    given = sequence(10, 30, [4, 5, 6])
    given.prompt_ids.append(drawing.output_ids[0])
    (found,) = scores(executor, [given])
    assert len(found) == 30
    logprob, top = found[-1]
    assert logprob == result.logprobs[0]
    assert top is not None
    assert result.top[0] is not None
    assert top.logprobs == result.top[0].logprobs, "a sim's alternatives are others, and as likely"


@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_scores_are_the_same_in_any_chunks_and_company(executor: Executor, chunk: int) -> None:
    lengths = [40, 17, 2, 33]
    alone = [scores(executor, [sequence(20 + i, n, [0, 1, 2])])[0] for i, n in enumerate(lengths)]
    together = [sequence(20 + i, n, [3 * i + k for k in range(3)]) for i, n in enumerate(lengths)]
    assert scores(executor, together, chunk) == alone


def test_scores_go_on_after_what_was_computed_before(executor: Executor) -> None:
    (whole,) = scores(executor, [sequence(11, 40, [1, 2, 3])])
    rest = sequence(11, 40, [1, 2, 9])
    rest.num_computed = 32
    assert scores(executor, [rest])[0] == whole[32:]


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
