"""A step's numbers: filled in on the host, copied to fixed places on the device, results copied back.

Everything is as large as the largest step from the start: a step allocates nothing, and a captured graph
finds its input where it was captured. Knows batches and pages; knows nothing of layers and weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.domain.capacity import pages_for
from services.domain.generation import MAX_LOGPROBS
from worker.engine.batch import Batch
from worker.executors.base import StepLimits
from worker.executors.triton_memory import Field, PackedMemory
from worker.executors.triton_sampling import ResultArrays, SamplingRows
from worker.executors.triton_stream import Event, HostBuffer, Stream
from worker.kernels import sampling as contract
from worker.kernels.paged_attention_triton import PagedBatch
from worker.kernels.sampling_triton import Drawn

_SPARE_ENTRIES = 1024
"""Ids of a row that are neither prompt nor output: biased and forbidden ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlaces:
    """What the sampling contract names; `entries` and `biases` whole, the rest [O, ...]."""

    numbers: Tensor
    integers: Tensor
    entries: Tensor
    biases: Tensor
    drawn: Drawn
    """Whole: [most rows, ...]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonStep:
    """A step's places on the device; rows past the batch's own are padding, which nobody reads."""

    ids: Tensor
    """[T] int32"""
    positions: Tensor
    """[T] int32"""
    slots: Tensor
    """[T] int32: page * page_size + token of the page, where a token's keys and values go."""
    out_rows: Tensor
    """[O] int32"""
    batch: PagedBatch
    is_decode: bool
    """Whether every sequence has one row."""
    sampling: SamplingPlaces


@dataclass(frozen=True, slots=True)
class StepShape:
    """What decides a step's launches."""

    num_tokens: int
    num_sequences: int
    num_outputs: int
    is_decode: bool

    @classmethod
    def of(cls, batch: Batch) -> "StepShape":
        """Return the shape of a batch as it is."""
        counts = np.diff(batch.query_start)
        is_decode = bool((counts == 1).all())
        return cls(len(batch.ids), len(batch.context_len), len(batch.out_rows), is_decode)

    @property
    def is_plain_decode(self) -> bool:
        """Whether every sequence has one row, of which logits are wanted: what is captured."""
        return self.is_decode and self.num_outputs == self.num_sequences

    @classmethod
    def decode(cls, num_sequences: int) -> "StepShape":
        """Return that of a decode step of which every row draws."""
        return cls(num_sequences, num_sequences, num_sequences, is_decode=True)


@dataclass(frozen=True, slots=True)
class Downloaded:
    """Results on their way."""

    event: Event
    """Passed when they are there."""
    array: ResultArrays


class _Turn:
    """What a step under way has to itself on the host."""

    def __init__(self, stream: Stream, memories: Sequence[PackedMemory]) -> None:
        self.hosts = {memory: stream.pinned(memory.num_bytes) for memory in memories}
        self.event = stream.event()


class StepMemory:
    """Where steps go in and out. Two steps may be under way: each has host memory of its own."""

    def __init__(self, stream: Stream, limits: StepLimits, vocab_size: int) -> None:
        self._stream, self._page_size = stream, limits.page_size
        tokens, sequences, outputs = limits.max_step_tokens, limits.max_sequences, limits.max_outputs
        i32, f32 = torch.int32, torch.float32
        self._inputs = PackedMemory(
            stream,
            (
                Field("out_rows", i32, (outputs,)),
                Field("query_start", i32, (sequences + 1,)),
                Field("context_len", i32, (sequences,)),
                Field("feeds", i32, (sequences,)),
                Field("numbers", torch.float64, (outputs, contract.NUMBERS)),
                Field("integers", torch.int64, (outputs, contract.INTEGERS)),
                Field("ids", i32, (tokens,)),
                Field("positions", i32, (tokens,)),
                Field("slots", i32, (tokens,)),
                # Last, so that a step of few sequences copies few rows.
                Field("page_table", i32, (sequences, pages_for(limits.max_context_tokens, limits.page_size))),
            ),
        )
        most = sequences * min(vocab_size, limits.max_context_tokens + _SPARE_ENTRIES)
        self._entries = PackedMemory(stream, (Field("entries", i32, (most, 3)),))
        self._biases = PackedMemory(stream, (Field("biases", f32, (most,)),))
        self._results = PackedMemory(
            stream,
            (
                *(Field(name, i32, (outputs,)) for name in ("token_ids", "failed")),
                Field("logprobs", f32, (outputs,)),
                Field("top_ids", i32, (outputs, MAX_LOGPROBS)),
                Field("top_logprobs", f32, (outputs, MAX_LOGPROBS)),
            ),
        )
        memories = (self._inputs, self._entries, self._biases, self._results)
        # A row that fails draws nothing, and the step behind is fed what lies here: an id of the vocabulary.
        self._results.tensor("token_ids").zero_()
        self._turn, self._other_turn = _Turn(stream, memories), _Turn(stream, memories)

    def view(self, shape: StepShape) -> TritonStep:
        """Return the places of a step of this shape."""
        inputs, results = self._inputs.tensor, self._results.tensor
        tokens, outputs, sequences = shape.num_tokens, shape.num_outputs, shape.num_sequences
        return TritonStep(
            ids=inputs("ids")[:tokens],
            positions=inputs("positions")[:tokens],
            slots=inputs("slots")[:tokens],
            out_rows=inputs("out_rows")[:outputs],
            batch=PagedBatch(
                query_start=inputs("query_start")[: sequences + 1],
                context_len=inputs("context_len")[:sequences],
                page_table=inputs("page_table")[:sequences],
            ),
            is_decode=shape.is_decode,
            sampling=SamplingPlaces(
                numbers=inputs("numbers")[:outputs],
                integers=inputs("integers")[:outputs],
                entries=self._entries.tensor("entries"),
                biases=self._biases.tensor("biases"),
                drawn=Drawn(*(results(name) for name in _RESULTS)),
            ),
        )

    def upload(self, batch: Batch, rows: SamplingRows, shape: StepShape, *, padding_slot: int) -> None:
        """Fill in a batch, padded to `shape`, and queue its copies. Its memory is free after two more steps.

        A padding row has no context, scores id 0, and stores its keys in `padding_slot`, a page of nobody.
        """
        self._turn, self._other_turn = self._other_turn, self._turn
        fill = _Filling(self._inputs, self._turn.hosts[self._inputs])
        tokens, sequences, outputs = len(batch.ids), len(batch.context_len), len(batch.out_rows)
        fill("ids", batch.ids, shape.num_tokens)
        fill("positions", batch.positions, shape.num_tokens)
        fill("slots", self._slots_of(batch), shape.num_tokens, padding_slot)
        if batch.feeds is not None:
            fill("feeds", batch.feeds, len(batch.feeds))
        fill("out_rows", batch.out_rows, shape.num_outputs)
        fill("query_start", batch.query_start, shape.num_sequences + 1)
        fill("context_len", batch.context_len, shape.num_sequences)
        fill("numbers", rows.numbers, shape.num_outputs)
        fill("integers", rows.integers, shape.num_outputs)
        if shape.num_outputs > outputs:
            fill.array("integers")[outputs : shape.num_outputs, contract.NUM_LOGPROBS] = -1
            fill.array("out_rows")[outputs : shape.num_outputs] = np.arange(outputs, shape.num_outputs)
            fill.array("query_start")[sequences : shape.num_sequences + 1] = np.arange(
                tokens, shape.num_tokens + 1
            )
        table = fill.array("page_table")
        table[:sequences, : batch.page_table.shape[1]] = batch.page_table[:, : table.shape[1]]
        copied = self._inputs.end_of("page_table", sequences)
        self._stream.upload(fill.host, self._inputs.device, copied)
        if len(rows.entries):
            self._upload_entries(rows)

    def feed(self, num_tokens: int) -> Tensor:
        """Launch the copy of what the step before drew to the first ids of this one; return their place."""
        token_ids, inputs = self._results.tensor("token_ids"), self._inputs.tensor
        ids = inputs("ids")[:num_tokens]
        torch.index_select(token_ids, 0, inputs("feeds")[:num_tokens], out=ids)
        return ids

    def download(self, num_outputs: int, *, has_top: bool) -> Downloaded:
        """Queue the copy of a step's results."""
        memory, turn = self._results, self._turn
        host = turn.hosts[memory]
        copied = memory.end_of("top_logprobs" if has_top else "logprobs")
        self._stream.download(memory.device, host, copied)
        turn.event.record()
        return Downloaded(turn.event, lambda name: memory.array(host, name)[:num_outputs].copy())

    def _upload_entries(self, rows: SamplingRows) -> None:
        hosts = self._turn.hosts
        for memory, name, values in (
            (self._entries, "entries", rows.entries),
            (self._biases, "biases", rows.biases),
        ):
            memory.array(hosts[memory], name)[: len(values)] = values
            self._stream.upload(hosts[memory], memory.device, memory.end_of(name, len(values)))

    def _slots_of(self, batch: Batch) -> NDArray[np.int32]:
        counts = np.diff(batch.query_start)
        sequence = np.repeat(np.arange(len(counts)), counts)
        pages = batch.page_table[sequence, batch.positions // self._page_size]
        slots: NDArray[np.int32] = pages * self._page_size + batch.positions % self._page_size
        return slots


_RESULTS = ("token_ids", "failed", "logprobs", "top_ids", "top_logprobs")


@dataclass(frozen=True, slots=True)
class _Filling:
    """A host buffer being filled in."""

    memory: PackedMemory
    host: HostBuffer

    def array(self, name: str) -> NDArray[Any]:
        return self.memory.array(self.host, name)

    def __call__(self, name: str, values: NDArray[Any], padded: int, padding: int = 0) -> None:
        array = self.array(name)
        array[: len(values)] = values
        array[len(values) : padded] = padding
