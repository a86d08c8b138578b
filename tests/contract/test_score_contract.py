"""What every executor keeps when it scores tokens that are given. One suite, many implementations."""

import numpy as np
import pytest

from services.domain.generation import SamplingParams
from tests.fakes.contract_executors import Sequence, sequence, step
from worker.engine.batch import Batch, SampleRow, TopLogprobs
from worker.executors.base import Executor

pytestmark = pytest.mark.timeout(600)
"""The first test of the native executor compiles it."""


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


@pytest.mark.parametrize("chunk", [1, 7, 16, 24])
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
