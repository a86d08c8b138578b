"""An executor that has two steps under way, over token histories in KV memory: it notices misuse of a page.

A device runs a step after the one before it and knows its tokens; so a step is computed here when it is
collected, with the arrays that it was launched with.
"""

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from services.domain.generation import SamplingParams
from tests.fakes.kv_checking_executor import KvCheckingExecutor
from worker.engine.batch import Batch, Int32, StepResult


@dataclass(frozen=True, slots=True)
class _Launched:
    batch: Batch
    sampling_positions: list[int]


class OverlappingExecutor(KvCheckingExecutor):
    """`launch` and `collect` beside `execute`."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.num_ahead = 0
        """Steps launched before the one ahead of them was collected."""
        self._under_way: deque[_Launched] = deque()
        self._drawn: Int32 = np.zeros(0, np.int32)

    def launch(self, batch: Batch) -> _Launched:
        assert len(self._under_way) < 2, "two steps are under way"
        assert (batch.feeds is not None) == bool(self._under_way), "a step ahead is fed by the one before it"
        if batch.feeds is not None:
            self.num_ahead += 1
            assert all(row.params == replace(row.params, **_NO_PENALTIES) for row in batch.sampling)
        behind = batch.feeds is not None
        launched = _Launched(
            replace(
                batch,
                ids=batch.ids.copy(),
                positions=batch.positions.copy(),
                context_len=batch.context_len.copy(),
                query_start=batch.query_start.copy(),
                page_table=batch.page_table.copy(),
                out_rows=batch.out_rows.copy(),
            ),
            [row.position + behind for row in batch.sampling],
        )
        self._under_way.append(launched)
        return launched

    def collect(self, launched: _Launched) -> StepResult:
        assert self._under_way.popleft() is launched, "the oldest step is collected first"
        batch = launched.batch
        if batch.feeds is not None:
            batch = replace(batch, ids=self._drawn[batch.feeds])
        # Rows have moved on since: by the step before, which has been applied.
        assert [row.position for row in batch.sampling] == launched.sampling_positions
        result = self.execute(batch)
        self._drawn = result.token_ids.copy()
        return result


_NO_PENALTIES = {
    name: getattr(SamplingParams(), name)
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
}
