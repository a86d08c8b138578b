"""An executor that has two steps under way, over token histories in KV memory: it notices misuse of a page.

A device runs a step after the one before it and knows its tokens; so a step is computed here when it is
collected, with the arrays that it was launched with.
"""

from collections import deque
from dataclasses import dataclass, replace

from services.domain.generation import SamplingParams
from tests.fakes.kv_checking_executor import KvCheckingExecutor
from worker.engine.batch import Batch, Int32, SampleRow, StepResult


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
        self.num_ahead_with_prompts = 0
        """Of those, with tokens that nobody draws."""
        self._under_way: deque[_Launched] = deque()
        self._last: StepResult

    def launch(self, batch: Batch) -> _Launched:
        assert len(self._under_way) < 2, "two steps are under way"
        assert (batch.feeds is not None) == bool(self._under_way), "a step ahead is fed by the one before it"
        num_fed = 0
        if batch.feeds is not None:
            num_fed = len(batch.feeds)
            self.num_ahead += 1
            self.num_ahead_with_prompts += len(batch.ids) > num_fed
            fed = batch.sampling[:num_fed]
            assert all(row.params == replace(row.params, **_NO_PENALTIES) for row in fed)
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
            [row.position + (i < num_fed) for i, row in enumerate(batch.sampling)],
        )
        self._under_way.append(launched)
        return launched

    def collect(self, launched: _Launched) -> StepResult:
        assert self._under_way.popleft() is launched, "the oldest step is collected first"
        batch = launched.batch
        if batch.feeds is not None:
            ids = batch.ids.copy()
            ids[: len(batch.feeds)] = self._last.token_ids[batch.feeds]
            failed = [i for i, place in enumerate(batch.feeds) if self._last.failed[place]]
            batch = replace(batch, ids=ids, sampling=_moved_on(batch, ids, failed))
        # The others have moved on since: by the step before, which has been applied.
        assert [row.position for row in batch.sampling] == launched.sampling_positions
        self._last = self.execute(batch)
        return replace(self._last, token_ids=self._last.token_ids.copy())


def _moved_on(batch: Batch, ids: Int32, rows: list[int]) -> tuple[SampleRow, ...]:
    """Return the rows of a batch, of which `rows` got no further, as if they had: they are computed too."""
    sampling = list(batch.sampling)
    for i in rows:
        row = sampling[i]
        output_ids = [*row.output_ids, int(ids[i])]
        sampling[i] = replace(row, position=row.position + 1, output_ids=output_ids)
    return tuple(sampling)


_NO_PENALTIES = {
    name: getattr(SamplingParams(), name)
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
}
