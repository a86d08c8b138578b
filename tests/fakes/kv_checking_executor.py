"""An executor that keeps real KV memory of token histories and notices every misuse of a page."""

from collections.abc import Callable
from zlib import crc32

from worker.engine.batch import Batch, StepResult
from worker.executors.base import ModelProfile, nothing
from worker.executors.sim import SimConfig, SimExecutor, SimFaults


class KvCheckingExecutor:
    """A sim without waiting. A token's KV stands for the token and all before it, as in a real model."""

    def __init__(self, config: SimConfig | None = None, faults: SimFaults | None = None) -> None:
        self.sim = SimExecutor(config or SimConfig(vocab_size=1000, time_scale=0), faults)
        self.page_size = self.sim.profile.page_size
        self._kv: list[list[int | None]] = []
        self.num_computed_tokens = 0
        self.batch_sizes: list[int] = []
        self.num_output_rows: list[int] = []

    @property
    def profile(self) -> ModelProfile:
        return self.sim.profile

    @property
    def faults(self) -> SimFaults:
        return self.sim.faults

    def allocate(self, num_pages: int) -> None:
        self.sim.allocate(num_pages)
        self._kv = [[None] * self.page_size for _ in range(num_pages)]

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        meanwhile()
        num_sequences = len(batch.context_len)
        self.num_computed_tokens += len(batch.ids)
        self.batch_sizes.append(num_sequences)
        tables = [
            batch.page_table[i, : -(-int(batch.context_len[i]) // self.page_size)].tolist()
            for i in range(num_sequences)
        ]
        self._check_no_shared_page_is_written(batch, tables)
        self._store(batch, tables)
        scores = self._check_what_is_read(batch, tables)
        result = self.sim.execute(batch)
        for output, logprob in scores.items():
            result.logprobs[output] = logprob
        self.num_output_rows.append(len(batch.out_rows))
        return result

    def close(self) -> None:
        self.sim.close()

    def _store(self, batch: Batch, tables: list[list[int]]) -> None:
        """Let each token's KV stand for the token and all before it."""
        page_size = self.page_size
        for i, table in enumerate(tables):
            begin, end = int(batch.query_start[i]), int(batch.query_start[i + 1])
            positions = batch.positions[begin:end].tolist()
            assert positions == list(range(positions[0], positions[0] + end - begin)), (
                "positions are consecutive"
            )
            assert positions[-1] + 1 == batch.context_len[i], "context ends with this step's tokens"
            for position, token in zip(positions, batch.ids[begin:end].tolist(), strict=True):
                before = 0 if position == 0 else self._read(table, position - 1)
                self._kv[table[position // page_size]][position % page_size] = _link(before, token)

    def _check_what_is_read(self, batch: Batch, tables: list[list[int]]) -> dict[int, float]:
        """Read what each output row attends to; return the scores of those that have a target."""
        targets = [-1] * len(batch.out_rows) if batch.targets is None else batch.targets.tolist()
        scores: dict[int, float] = {}
        for output, (row, sample) in enumerate(zip(batch.out_rows.tolist(), batch.sampling, strict=True)):
            i = int((batch.query_start[1:] > row).argmax())
            history = [*sample.prompt_ids, *sample.output_ids]
            if targets[output] < 0:
                assert row == batch.query_start[i + 1] - 1, "a token is drawn after a sequence's last one"
                assert len(history) == batch.context_len[i]
            else:
                length = int(batch.positions[row]) + 1
                assert targets[output] == history[length], "what is scored is the prompt's next token"
                history = history[:length]
                scores[output] = score(history, targets[output])
            value = 0
            for position, token in enumerate(history):
                value = _link(value, token)
                assert self._read(tables[i], position) == value, f"KV at {position} is of other tokens"
        return scores

    def _read(self, table: list[int], position: int) -> int:
        value = self._kv[table[position // self.page_size]][position % self.page_size]
        assert value is not None, "KV is read that was never computed"
        return value

    def _check_no_shared_page_is_written(self, batch: Batch, tables: list[list[int]]) -> None:
        for i, table in enumerate(tables):
            first = int(batch.positions[batch.query_start[i]]) // self.page_size
            written = set(table[first:])
            for j, other in enumerate(tables):
                assert i == j or not written & set(other), "a page is written that another sequence reads"


def score(before: list[int], token: int) -> float:
    """A log-probability that tells which token follows which others."""
    value = 0
    for one in (*before, token):
        value = _link(value, one)
    return -(value % 4096) / 64


def _link(before: int, token: int) -> int:
    return crc32(token.to_bytes(4, "little"), before)
