"""Turns a plan and its packed weights into the arrays that the native library takes, once.

Knows `abi.h` and plans; knows nothing of batches or of how weights are packed.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.domain.kv_layout import KvLayout
from worker.executors.base import KernelUse
from worker.executors.kernel_uses import count_uses, is_named
from worker.executors.native.library import (
    KV_FORMATS,
    OP_KINDS,
    Compute,
    Library,
    Model,
    NativeError,
    Op,
    Slot,
    Weight,
    WeightKind,
)
from worker.executors.native.packed_weights import PackedWeights, SwappedLayer, parameter_groups
from worker.plan import op as plan_op
from worker.plan.op import OpKind, Plan, RopeTable

Float32 = NDArray[np.float32]


class UnsupportedOperation(Exception):
    """The model needs something that the native library does not compute."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the native executor does not compute this model ({what}):"
            " install the torch executor (pip install 'quire[torch]'), or serve another model"
        )


def check_supported(plan: Plan) -> None:
    """Refuse a plan with an operation that the library lacks.

    Raises:
        UnsupportedOperation: It names the operation.
    """
    for op in plan.ops:
        if op.kind not in OP_KINDS:
            raise UnsupportedOperation(f"its plan has {op.kind}")


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """A model inside the library. `rope_tables` and the packed weights must live as long as the handle."""

    handle: int
    rope_tables: Sequence[Float32]
    kernels: tuple[KernelUse, ...]

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables of rotations."""
        return sum(table.nbytes for table in self.rope_tables)


def bind_plan(
    library: Library,
    plan: Plan,
    packed: PackedWeights | SwappedLayer,
    layout: KvLayout,
    *,
    max_positions: int,
    compute: Compute,
    num_threads: int,
) -> BoundPlan:
    """Hand the plan over and return the library's engine.

    Raises:
        NativeError: The library refuses it.
    """
    weights: list[Weight] = []
    ops: list[Op] = []
    kernels: list[tuple[plan_op.Op, str]] = []
    for op in plan.ops:
        groups = [packed.find(names) for names in parameter_groups(op)]
        entries = [entry for group in groups for entry in group]
        ops.append(_bind_op(op, first_weight=len(weights), num_weights=len(entries)))
        weights += [
            Weight(entry.kind, entry.rows, entry.cols, entry.group, address) for entry, address in entries
        ]
        if op.kind is OpKind.PAGED_ATTENTION:
            kernels.append((op, f"kv_{layout.format}"))
        elif is_named(op):
            # A row of the embedding is read as floats.
            read_as = Compute.F32 if op.kind is OpKind.EMBED else compute
            kernels += [(op, library.kernel_name(WeightKind(entry.kind), read_as)) for entry, _ in groups[0]]
    tables = [rope_table(rope, max_positions) for rope in plan.ropes]
    model = Model(
        ops=(Op * len(ops))(*ops),
        slots=(Slot * len(plan.slots))(*(Slot(slot.rows == "O", slot.width) for slot in plan.slots)),
        weights=(Weight * len(weights))(*weights),
        rope_tables=(ctypes.c_void_p * len(tables))(*(table.ctypes.data for table in tables)),
        num_ops=len(ops),
        num_slots=len(plan.slots),
        num_weights=len(weights),
        num_rope_tables=len(tables),
        output=plan.output,
        num_layers=plan.num_layers,
        num_heads=plan.num_heads,
        num_kv_heads=plan.num_kv_heads,
        head_dim=plan.head_dim,
        max_positions=max_positions,
        page_size=layout.page_size,
        kv_format=KV_FORMATS.index(layout.format),
        compute=compute,
    )
    handle = library.call("create", ctypes.byref(model), num_threads)
    if not handle:
        raise NativeError(library.last_error())
    return BoundPlan(handle, tables, count_uses(kernels))


def rope_table(rope: RopeTable, max_positions: int) -> Float32:
    """Return [max_positions, head_dim] float32: cosines of all pairs, then sines.

    Angles are products in float32, as the reference has them; the functions of them are exact to float32.
    """
    frequencies = np.array(rope.inverse_frequencies, np.float32)
    angles = (np.arange(max_positions, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return table * np.float32(rope.magnitude)


def _bind_op(op: plan_op.Op, *, first_weight: int, num_weights: int) -> Op:
    attributes = dict(op.attributes)
    bound = Op(
        kind=OP_KINDS[op.kind],
        output=op.outputs[0],
        first_weight=first_weight,
        num_weights=num_weights,
        has_biases=int(attributes.get("biases", 0)),
        layer=int(attributes.get("layer", 0)),
        rope_table=int(attributes.get("rope", 0)),
        window=int(attributes.get("window", 0)),
        activation=int(attributes.get("activation", 0)),
        eps=attributes.get("eps", 0.0),
        scale=attributes.get("factor", attributes.get("scale", 0.0)),
        soft_cap=attributes.get("cap", attributes.get("soft_cap", 0.0)),
    )
    for place, slot in enumerate(op.inputs):
        bound.inputs[place] = slot
    return bound
