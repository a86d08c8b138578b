"""Runs texts through an executor without the rest of the worker: teacher-forced logits and greedy answers.

Knows batches and pages; knows nothing of what is measured.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.domain.capacity import pages_for
from services.domain.generation import SamplingParams
from worker.engine.batch import Batch, SampleRow, StepResult
from worker.executors.base import ModelProfile

CHUNK = 64
"""Positions whose logits are held at once."""
SEQUENCES = 16
"""Answers made together."""

_GREEDY = SamplingParams(temperature=0)


class TappedExecutor(Protocol):
    """An executor that shows its logits."""

    on_logits: Callable[[Batch, NDArray[np.float32]], None] | None

    @property
    def profile(self) -> ModelProfile: ...
    def allocate(self, num_pages: int) -> None: ...
    def execute(self, batch: Batch) -> StepResult: ...


class Runner:
    """One executor, used for one thing at a time."""

    def __init__(self, executor: TappedExecutor, *, max_tokens: int) -> None:
        """Args:
        max_tokens: Longest text or prompt + answer.
        """
        self._executor = executor
        self._page_size = executor.profile.page_size
        self._width = pages_for(max_tokens, self._page_size)
        self._logits: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        executor.allocate(SEQUENCES * self._width)
        executor.on_logits = self._keep

    def forced(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Yield the logits after every token but the last, [n, V] at a time, in order."""
        for start in range(0, len(ids) - 1, CHUNK):
            stop = min(len(ids) - 1, start + CHUNK)
            self._step([(ids[start:stop], start)], all_rows=True)
            yield self._logits

    def answers(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, stop_ids: frozenset[int]
    ) -> list[list[int]]:
        """Return the greedy continuation of each prompt, up to `max_tokens` or before a stop id.

        Nothing continues a prompt without tokens: what a tokeniser makes of a script that it does not know.
        """
        made: list[list[int]] = []
        asked = [prompt for prompt in prompts if prompt]
        for first in range(0, len(asked), SEQUENCES):
            made += self._answer_some(asked[first : first + SEQUENCES], max_tokens, stop_ids)
        answers = iter(made)
        return [next(answers) if prompt else [] for prompt in prompts]

    def _answer_some(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, stop_ids: frozenset[int]
    ) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in prompts]
        # 1. Prompts one after the other, so that no step is larger than a prompt.
        for index, prompt in enumerate(prompts):
            outputs[index].append(self._step([(prompt, 0)], tables=[index])[0])
        # 2. All that have not ended, one token each.
        live = list(range(len(prompts)))
        for _ in range(max_tokens - 1):
            live = [index for index in live if outputs[index][-1] not in stop_ids]
            if not live:
                break
            places = [len(prompts[index]) + len(outputs[index]) - 1 for index in live]
            rows = [([outputs[index][-1]], place) for index, place in zip(live, places, strict=True)]
            for index, token in zip(live, self._step(rows, tables=live), strict=True):
                outputs[index].append(token)
        return [output[:-1] if output[-1] in stop_ids else output for output in outputs]

    def _step(
        self,
        rows: Sequence[tuple[Sequence[int], int]],
        *,
        tables: Sequence[int] = (0,),
        all_rows: bool = False,
    ) -> list[int]:
        """Run one step. rows: ids of each sequence and the position of the first; tables: whose pages."""
        counts = [len(ids) for ids, _ in rows]
        query_start = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        positions = [np.arange(start, start + len(ids), dtype=np.int32) for ids, start in rows]
        out_rows = np.arange(query_start[-1], dtype=np.int32) if all_rows else query_start[1:] - 1
        pages = np.arange(self._width, dtype=np.int32)
        result = self._executor.execute(
            Batch(
                ids=np.concatenate([np.array(ids, np.int32) for ids, _ in rows]),
                positions=np.concatenate(positions),
                query_start=query_start,
                context_len=np.array([start + len(ids) for ids, start in rows], np.int32),
                page_table=np.stack([pages + table * self._width for table in tables]),
                out_rows=out_rows,
                sampling=(SampleRow(_GREEDY, 0, 0, (), ()),) * len(out_rows),
            )
        )
        return [int(token) for token in result.token_ids]

    def _keep(self, _batch: Batch, logits: NDArray[np.float32]) -> None:
        self._logits = logits.copy()
