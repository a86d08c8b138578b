"""Matches a plan's parameters with a file's tensors, all of them, before the first one is read.

Knows names, shapes and transforms; knows nothing of torch or of what an executor makes of the numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from services.artifacts.artifact import ArtifactKind, ModelArtifact
from services.artifacts.errors import ArtifactError
from services.artifacts.tensors import TensorRef
from worker.executors.weights.ggml_blocks import decode_blocks, layout_of
from worker.executors.weights.packed.matrix import PackedMatrix
from worker.executors.weights.packed.scheme import Scheme, read_scheme
from worker.executors.weights.quantized import CodeLayout, Float32, QuantizedMatrix
from worker.models.errors import UnsupportedModel
from worker.models.registry import BuiltModel, build_model
from worker.models.tensor_names import (
    Transform,
    WeightFormat,
    file_name_of,
    is_derived,
    text_name_of,
    transform_of,
)
from worker.plan.shard import WeightPart, shard

_Number = TypeVar("_Number", np.float32, np.uint8)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Source:
    stored: TensorRef | PackedMatrix
    transform: Transform


class WeightSource:
    """The parameters of one model or one rank of it, read one at a time out of the memory map."""

    def __init__(
        self,
        model: BuiltModel,
        sources: Mapping[str, _Source],
        parts: Mapping[str, WeightPart] = MappingProxyType({}),
    ) -> None:
        """Args:
        model: Its plan's parameters have the shapes of their parts.
        sources: Whole parameters.
        parts: What is read of some of them.
        """
        self._model = model
        self._sources = sources
        self._parts = parts

    def for_rank(self, model: BuiltModel, parts: Mapping[str, WeightPart]) -> "WeightSource":
        """Return the weights of one rank of this model, which reads its parts and nothing else."""
        return WeightSource(model, self._sources, parts)

    def in_floats(self) -> "WeightSource":
        """Return the same weights without codes: every reader gets the exact numbers of `read`."""
        return _Floats(self._model, self._sources, self._parts)

    def read(self, parameter: str) -> Float32:
        """Return a parameter as a new float32 array, dequantised and in our row order.

        Raises:
            ArtifactError: The stored numbers cannot be read.
        """
        source = self._source(parameter)
        values = source.stored.to_float32()
        # A damaged scale would turn every answer into NaN, or a few into nonsense: say so at load.
        if not (np.isfinite(values.min()) and np.isfinite(values.max())):
            raise _not_finite(source.stored)
        if source.transform is Transform.ADD_ONE:
            values += 1
        heads = self._permuted_heads(parameter)
        return values if heads is None else unpermute_heads(values, heads)

    def read_quantized(self, parameter: str) -> QuantizedMatrix | None:
        """Return a parameter as codes, in our row order; None where its file holds floats.

        None as well for what has no such form (see `decode_blocks`, `PackedMatrix`): `read` gives those.

        Raises:
            ArtifactError: A stored scale or offset is not a finite number.
        """
        source = self._source(parameter)
        stored = source.stored
        matrix = decode_blocks(stored) if isinstance(stored, TensorRef) else stored.to_codes()
        if matrix is None:
            return None
        if not (np.isfinite(matrix.scales).all() and np.isfinite(matrix.offsets).all()):
            raise _not_finite(source.stored)
        heads = self._permuted_heads(parameter)
        if heads is None:
            return matrix
        codes, scales, offsets = (
            unpermute_heads(matrix.codes, heads),
            unpermute_heads(matrix.scales, heads),
            unpermute_heads(matrix.offsets, heads),
        )
        return replace(matrix, codes=codes, scales=scales, offsets=offsets)

    def layout_of(self, parameter: str) -> CodeLayout | None:
        """Return how `read_quantized` will hold a parameter; None where it gives None."""
        stored = self._source(parameter).stored
        return layout_of(stored) if isinstance(stored, TensorRef) else stored.layout()

    def float_bytes(self, parameter: str) -> int:
        """Return the bytes of one number of a parameter that has no codes, as its file holds it."""
        stored = self._sources[parameter].stored
        if isinstance(stored, TensorRef) and not stored.format.is_quantised:
            return stored.format.block_bytes
        # Blocks and codes that are not decoded as such become float32.
        return 4

    def read_rows(self, parameter: str, rows: slice | NDArray[np.int64]) -> Float32:
        """Return some rows of a matrix whose rows are stored in our order, as `read` gives them."""
        stored = self._source(parameter).stored
        assert self._permuted_heads(parameter) is None
        return (
            stored.select_rows(rows).to_float32()
            if isinstance(stored, TensorRef)
            else self.read(parameter)[rows]
        )

    def stored_floats(self, parameter: str) -> TensorRef | None:
        """Return the file's tensor where it holds the parameter as it is, in plain floats; else None."""
        source = self._source(parameter)
        if source.transform is not Transform.NONE or not isinstance(source.stored, TensorRef):
            return None
        return None if source.stored.format.is_quantised else source.stored

    def _permuted_heads(self, parameter: str) -> int | None:
        """Return the number of heads whose rows the file permutes, None where it keeps them in order."""
        if self._sources[parameter].transform is not Transform.UNPERMUTE_HEADS:
            return None
        plan = self._model.plan
        return plan.parameters[parameter][0] // plan.head_dim

    def _source(self, parameter: str) -> _Source:
        """Return where a parameter is read from; of its rank's part alone, when there are ranks."""
        source, part = self._sources[parameter], self._parts.get(parameter)
        if part is None:
            return source
        stored = source.stored
        if isinstance(stored, PackedMatrix):
            return replace(source, stored=stored.cut(part))
        is_vector = len(stored.shape) == 1
        if part.rows is not None and not is_vector:
            stored = stored.select_rows(slice(part.rows.start, part.rows.stop))
        if (columns := part.rows if is_vector else part.columns) is not None:
            stored = stored.select_columns(columns.start, columns.stop)
        return replace(source, stored=stored)


class _Floats(WeightSource):
    """Weights of which no parameter has codes."""

    def read_quantized(self, parameter: str) -> QuantizedMatrix | None:
        return None

    def layout_of(self, parameter: str) -> CodeLayout | None:
        return None


def open_model(artifact: ModelArtifact) -> tuple[BuiltModel, WeightSource]:
    """Build the artifact's plan and prove that its tensors fill it: each exactly once, with equal shapes.

    The output head follows the config's `tie_word_embeddings`: tied uses the embedding even where the file
    holds another head (a warning is logged); untied without a head is an error.

    Raises:
        ArtifactError: Unknown family or maths, or a tensor is missing, left over or of the wrong shape.
    """
    weight_format = WeightFormat.GGUF if artifact.kind is ArtifactKind.GGUF else WeightFormat.HUGGING_FACE
    try:
        scheme = read_scheme(artifact.config)
        config = {key: value for key, value in artifact.config.items() if key != "quantization_config"}
        model = build_model(config)
        sources: dict[str, _Source] = {}
        unused = {
            name: tensor
            for full, tensor in artifact.tensors.items()
            if (name := text_name_of(full)) is not None
        }
        for parameter, shape in model.plan.parameters.items():
            name = file_name_of(parameter, weight_format)
            stored = _take(name, unused, shape, scheme)
            if stored is None:
                raise ArtifactError(f"{artifact.path}: tensor {name} is missing; fetch the model again")
            if stored.shape != shape:
                raise ArtifactError(
                    f"{stored.file}: tensor {name} has shape {list(stored.shape)},"
                    f" its config wants {list(shape)}"
                )
            sources[parameter] = _Source(stored, transform_of(model.family, weight_format, parameter))
    except UnsupportedModel as exc:
        raise ArtifactError(f"{artifact.path}: {exc}") from exc
    if model.config.is_tied:
        _drop_tied_head(unused.pop(file_name_of("head", weight_format), None), sources["embedding"].stored)
    for name, tensor in unused.items():
        if not is_derived(name) and not (scheme is not None and scheme.is_ignorable(tensor)):
            raise ArtifactError(f"{tensor.file}: tensor {name} has no place in a {model.family} model")
    return model, WeightSource(model, sources)


def shard_model(
    model: BuiltModel, weights: WeightSource, *, rank: int, size: int
) -> tuple[BuiltModel, WeightSource]:
    """Return what `rank` of `size` computes of a model and reads of its weights.

    The config stays that of the whole model: its vocabulary and its context are every rank's.

    Raises:
        CannotShard: Heads, MLP or vocabulary do not divide. Where a part cuts a group of codes or a block,
            reading it raises an ArtifactError.
    """
    sharded = shard(model.plan, rank=rank, size=size)
    own = replace(model, plan=sharded.plan)
    return own, weights.for_rank(own, sharded.parts)


def unpermute_heads(values: NDArray[_Number], num_heads: int) -> NDArray[_Number]:
    """Undo the row order that GGUF gives Llama's q and k (or their biases).

    Worked number: one head of 4 rows, stored (0, 2, 1, 3), comes back as (0, 1, 2, 3).

    Args:
        values: [num_heads * head_dim, ...].
        num_heads: Query heads for q, key-value heads for k.
    """
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _take(
    name: str, unused: dict[str, TensorRef], shape: tuple[int, ...], scheme: Scheme | None
) -> TensorRef | PackedMatrix | None:
    """Take what holds a parameter out of `unused`: one tensor, or all that a packed matrix is made of."""
    if scheme is not None and len(shape) == 2 and name not in unused:
        return scheme.take(name.removesuffix(".weight"), unused, (shape[0], shape[1]))
    return unused.pop(name, None)


def _drop_tied_head(head: TensorRef | None, embedding: TensorRef | PackedMatrix) -> None:
    """Warn when a tied model's file holds a head of its own; the embedding is used all the same."""
    if head is not None and not (
        isinstance(embedding, TensorRef)
        and head.dtype == embedding.dtype
        and np.array_equal(head.raw(), embedding.raw())
    ):
        _log.warning("tied_head_ignored", file=str(head.file), tensor=head.name)


def _not_finite(tensor: TensorRef | PackedMatrix) -> ArtifactError:
    return ArtifactError(
        f"{tensor.file}: tensor {tensor.name} holds NaN or infinity (a damaged scale?); fetch the model again"
    )
