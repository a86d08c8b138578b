"""Runs steps on a device: inputs go in, launches or a captured graph, draws come back. Two may overlap.

Knows the plan, its memory and the stream; knows nothing of files or of who asks for a step.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from worker.engine.batch import Batch, SampleRow, StepResult
from worker.executors.base import StepLimits
from worker.executors.triton_plan import TritonPlan
from worker.executors.triton_sampling import result_of, rows_as_arrays
from worker.executors.triton_step import Downloaded, SamplingPlaces, StepMemory, StepShape
from worker.executors.triton_stream import Graph, Stream
from worker.kernels import sampling as contract
from worker.kernels.kv_pages_torch import LayerKv
from worker.kernels.sampling_triton import SamplingScratch, sample

_NO_IDS = np.empty(0, np.int32)
_NOTHING = Batch(
    ids=_NO_IDS,
    positions=_NO_IDS,
    query_start=np.zeros(1, np.int32),
    context_len=_NO_IDS,
    page_table=np.empty((0, 0), np.int32),
    out_rows=_NO_IDS,
    sampling=(),
)


@dataclass(frozen=True, slots=True)
class Launched:
    """A step under way."""

    results: Downloaded
    rows: Sequence[SampleRow]


class StepRunner:
    """Steps of one plan over one pool, with all memory that they work in.

    A decode step of which every row draws is padded up to the next size of the ladder and replayed; any other
    is launched operation by operation. Both give the same bits: no kernel looks past a row's own sequence.
    """

    def __init__(
        self,
        plan: TritonPlan,
        kv: Sequence[LayerKv],
        stream: Stream,
        limits: StepLimits,
        graph_sizes: Sequence[int],
        *,
        vocab_size: int,
        padding_page: int,
    ) -> None:
        """Args:
        kv: Memory of every layer.
        limits: The largest step; all memory is made for it.
        graph_sizes: See `load_triton_executor`; those beyond the largest step become that one.
        padding_page: The page that no sequence ever holds: rows of padding store there.
        """
        self._plan, self._kv, self._stream = plan, kv, stream
        self._vocab_size = vocab_size
        self._padding_slot = padding_page * limits.page_size
        self._plan_memory = plan.allocate(limits)
        self._scratch = SamplingScratch.allocate(limits.max_outputs, vocab_size, stream.device)
        self._memory = StepMemory(stream, limits, vocab_size)
        # What was copied and cleared so far went through other streams.
        stream.synchronize()
        sizes = {min(size, limits.max_sequences) for size in graph_sizes}
        self._sizes = sorted(sizes) if stream.can_capture else []
        self._graphs = {size: self._capture(size) for size in self._sizes}

    def launch(self, batch: Batch) -> Launched:
        """Queue a step; nothing waits for the device. At most two are under way.

        Raises:
            ValueError: As `rows_as_arrays`.
        """
        rows = rows_as_arrays(batch.sampling, self._vocab_size, batch.targets)
        if batch.feeds is not None:
            rows.integers[: len(batch.feeds), contract.POSITION] += 1
        shape = StepShape.of(batch)
        graph = None
        if shape.is_plain_decode and (place := bisect_left(self._sizes, shape.num_sequences)) < len(
            self._sizes
        ):
            shape = StepShape.decode(self._sizes[place])
            graph = self._graphs[self._sizes[place]]
        self._memory.upload(batch, rows, shape, padding_slot=self._padding_slot)
        if batch.feeds is not None and len(batch.feeds):
            with self._stream.launching():
                self._plan.share_ids(self._memory.feed(len(batch.feeds)))
        if graph is not None:
            graph.replay()
        else:
            with self._stream.launching():
                self._launch_all(shape)
        return Launched(self._memory.download(len(batch.out_rows), has_top=rows.max_top > 0), batch.sampling)

    def collect(self, launched: Launched) -> StepResult:
        """Wait for a step, the oldest under way, and return what it drew: its one synchronisation."""
        launched.results.event.synchronize()
        return result_of(launched.results.array, launched.rows, self._vocab_size)

    def read_logits(self, num_outputs: int) -> NDArray[np.float32]:
        """Wait for everything and return the last step's logits [num_outputs, vocab]; for taps."""
        return self._stream.read(self._plan_memory.logits[:num_outputs])

    def _launch_all(self, shape: StepShape) -> None:
        step = self._memory.view(shape)
        logits = self._plan.run(step, self._kv, self._plan_memory)
        if shape.num_outputs:
            self._draw(logits, step.sampling)

    def _draw(self, logits: Tensor, sampling: SamplingPlaces) -> None:
        # Rows that do not ask for one write none; the step before may have.
        sampling.drawn.logprobs.zero_()
        s = sampling
        sample(logits, s.numbers, s.integers, s.entries, s.biases, self._scratch, s.drawn)

    def _capture(self, size: int) -> Graph:
        # Compiling launches once: on nothing but padding.
        self._memory.upload(
            _NOTHING,
            rows_as_arrays((), self._vocab_size),
            StepShape.decode(size),
            padding_slot=self._padding_slot,
        )
        return self._stream.capture(lambda: self._launch_all(StepShape.decode(size)))
