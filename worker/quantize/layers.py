"""Cuts a plan into the part before the layers and one part per layer, and finds what feeds what.

Knows plans alone; knows nothing of weights' values or of any method.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from worker.plan.op import Op, OpKind, Plan

_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Layer:
    """The operations of one layer, and the slot by which it is entered and left."""

    index: int
    ops: tuple[Op, ...]
    input: int
    output: int

    @property
    def linears(self) -> tuple[Op, ...]:
        """Its matrix products, in order."""
        return tuple(op for op in self.ops if op.kind is OpKind.LINEAR)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of everything it reads, each once, in order."""
        return tuple(dict.fromkeys(name for op in self.ops for name in op.weights))


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """A plan by layers. What comes after the last one is not needed to quantise it."""

    prologue: tuple[Op, ...]
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Where a factor per input column of a product can be taken back out: what makes those columns.

    `parameter` is a norm's weight `[width]`, or a matrix whose rows become the columns.
    """

    parameter: str
    bias: str | None
    """Of that matrix; it is divided as the rows are."""
    num_repeats: int = 1
    """Columns per row: heads that share one key-value head; 1 elsewhere."""
    block: int = 1
    """Neighbouring rows after which the next repeat of a block begins: a head's size."""


def split(plan: Plan) -> SplitPlan:
    """Cut a plan. Between two layers exactly one slot is alive: the residual stream."""
    starts: list[int] = []
    for place, op in enumerate(plan.ops):
        if _layer_of(op) == len(starts):
            starts.append(place)
    end = next(i for i, op in enumerate(plan.ops) if op.kind is OpKind.GATHER_ROWS)
    layers = []
    for index, (start, stop) in enumerate(zip(starts, [*starts[1:], end], strict=True)):
        ops = plan.ops[start:stop]
        written = {slot for op in ops for slot in op.outputs}
        (entry,) = {slot for op in ops for slot in op.inputs} - written
        (leaving,) = {slot for op in plan.ops[stop:] for slot in op.inputs} & written
        layers.append(Layer(index, ops, entry, leaving))
    return SplitPlan(plan.ops[: starts[0]], tuple(layers))


def matrices_of(linear: Op) -> tuple[str, ...]:
    """Return the names of the matrices of a product, biases left out."""
    return linear.weights[: len(linear.weights) // (1 + linear.integer("biases"))]


def fold_of(layer: Layer, linear: Op, *, heads_per_group: int, head_dim: int) -> Fold | None:
    """Return where factors on the columns of `linear` can be folded; None where they cannot.

    Args:
        layer: The layer of the product.
        linear: One of its products.
        heads_per_group: Query heads per key-value head.
        head_dim: Rows of v, or columns, per head.
    """
    slot = linear.inputs[0]
    if sum(slot in op.inputs for op in layer.ops) != 1:
        return None
    maker = _maker(layer.ops, slot)
    if maker is None:
        return None
    if maker.kind is OpKind.RMS_NORM:
        return Fold(maker.weights[0], None)
    if maker.kind is OpKind.ACT_MUL:
        return _rows_of_last(layer.ops, maker)
    if maker.kind is OpKind.PAGED_ATTENTION:
        return _rows_of_last(layer.ops, maker, heads_per_group, head_dim)
    return None


def _rows_of_last(ops: Sequence[Op], maker: Op, num_repeats: int = 1, block: int = 1) -> Fold | None:
    """Return the last matrix (v of q, k, v; up of gate, up) of the product that `maker` goes back to."""
    while maker.kind is not OpKind.LINEAR:
        found = _maker(ops, maker.inputs[0])
        if found is None:
            return None
        maker = found
    matrices = matrices_of(maker)
    bias = maker.weights[-1] if len(matrices) < len(maker.weights) else None
    return Fold(matrices[-1], bias, num_repeats, block)


def _maker(ops: Sequence[Op], slot: int) -> Op | None:
    return next((op for op in ops if slot in op.outputs), None)


def _layer_of(op: Op) -> int | None:
    for name in op.weights:
        if (found := _LAYER.match(name)) is not None:
            return int(found.group(1))
    return None
