"""A model of random weights and steps of it: what a decode step costs does not depend on what it says.

Makes weights without a file, in seconds also for 8 billion of them: every matrix is a window of one block of
random numbers, copied to the device as any other. Knows plans and batches; knows nothing of time.
"""

import zlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from services.domain.generation import SamplingParams
from worker.engine.batch import Batch, Int32, SampleRow
from worker.executors.weights.quantized import Float32, QuantizedMatrix

_SCALE = 0.02
"""Of a weight: what training begins with, so that nothing overflows."""
_BLOCK = 1 << 22
"""Different numbers."""
_ROW = SampleRow(SamplingParams(temperature=0.0), 0, 0, (), ())

_Number = TypeVar("_Number", np.float32, np.uint8)


class RandomWeights:
    """What executors ask of a `WeightSource`."""

    def __init__(self, parameters: Mapping[str, tuple[int, ...]], *, group: int | None = None) -> None:
        """Make the block.

        Args:
            parameters: Shapes by name, as a plan has them.
            group: Columns that share a scale where layers are 4-bit codes; None: all is floats. Embedding
                and head are floats always, as in most published models.
        """
        self._parameters, self._group = parameters, group
        largest = max(int(np.prod(shape)) for shape in parameters.values())
        random = np.random.default_rng(0)
        block = random.standard_normal(_BLOCK, dtype=np.float32) * np.float32(_SCALE)
        self._numbers = np.resize(block, largest + _BLOCK)
        codes = random.integers(0, 16, _BLOCK, dtype=np.uint8)
        self._codes = np.resize(codes, largest + _BLOCK if group else 0)

    def read(self, parameter: str) -> Float32:
        """Return a matrix of random numbers, or a vector of ones."""
        shape = self._parameters[parameter]
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        return self._window(self._numbers, parameter)

    def read_quantized(self, parameter: str) -> QuantizedMatrix | None:
        """Return symmetric 4-bit codes, None for what is floats."""
        shape = self._parameters[parameter]
        if self._group is None or len(shape) == 1 or parameter in ("embedding", "head"):
            return None
        scales = np.full((shape[0], shape[1] // self._group), _SCALE / 4, np.float32)
        return QuantizedMatrix(self._window(self._codes, parameter), 4, self._group, scales, -8 * scales)

    def _window(self, block: NDArray[_Number], parameter: str) -> NDArray[_Number]:
        shape = self._parameters[parameter]
        start = zlib.crc32(parameter.encode()) % _BLOCK
        return block[start : start + int(np.prod(shape))].reshape(shape)


def decode_batch(num_sequences: int, context: int, *, page_size: int, vocab_size: int) -> Batch:
    """Return the step in which each sequence of `context` tokens makes one more, all greedy."""
    last = np.arange(num_sequences)
    return Batch(
        ids=(last % vocab_size).astype(np.int32),
        positions=np.full(num_sequences, context - 1, np.int32),
        query_start=np.arange(num_sequences + 1, dtype=np.int32),
        context_len=np.full(num_sequences, context, np.int32),
        page_table=page_table(num_sequences, context, page_size),
        out_rows=last.astype(np.int32),
        sampling=(_ROW,) * num_sequences,
    )


def prefill_batches(
    num_sequences: int, context: int, *, page_size: int, vocab_size: int, chunk: int
) -> Iterator[Batch]:
    """Yield steps that fill the pages of all sequences but for their last token.

    A step has as many whole sequences as fit into `chunk` tokens, at least one.
    """
    table = page_table(num_sequences, context, page_size)
    together = max(1, chunk // context)
    for first in range(0, num_sequences, together):
        members = range(first, min(first + together, num_sequences))
        length = context - 1
        ids = np.random.default_rng(first).integers(0, vocab_size, length * len(members), dtype=np.int32)
        yield Batch(
            ids=ids,
            positions=np.tile(np.arange(length, dtype=np.int32), len(members)),
            query_start=(np.arange(len(members) + 1) * length).astype(np.int32),
            context_len=np.full(len(members), length, np.int32),
            page_table=table[first : first + len(members)],
            out_rows=np.array([length * len(members) - 1], np.int32),
            sampling=(_ROW,),
        )


def page_table(num_sequences: int, context: int, page_size: int) -> Int32:
    """Return whole pages of each sequence, in random order."""
    width = -(-context // page_size)
    order = np.random.default_rng(1).permutation(num_sequences * width)
    return order.astype(np.int32).reshape(num_sequences, width)
