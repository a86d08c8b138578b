"""Joins neighbouring operations that one kernel computes, for executors that have such kernels.

A sum and the norm of it; the norm of q and k heads before they are rotated and stored; a norm or a gate and
the quantisation of its result. A joined operation gives the bits of its parts. Knows plans alone; nothing of
kernels or devices.
"""

from collections import Counter
from dataclasses import replace

from worker.plan.op import Op, OpKind, Plan

_QUANTIZED = {
    OpKind.RMS_NORM: OpKind.RMS_NORM_QUANTIZE,
    OpKind.ADD_RMS_NORM: OpKind.ADD_RMS_NORM_QUANTIZE,
    OpKind.ACT_MUL: OpKind.ACT_MUL_QUANTIZE,
}


def fuse(plan: Plan) -> Plan:
    """Return the plan with its pairs joined, its slots numbered anew where one is gone.

    Worked number: a Qwen 3 of 28 layers has 55 norms right after a sum and 28 before a rotation, so 83
    operations fewer.
    """
    reads = Counter(index for op in plan.ops for index in op.inputs)
    ops: list[Op] = []
    for op in plan.ops:
        joined = _join(ops[-1], op, reads) if ops else None
        if joined is None:
            ops.append(op)
        else:
            ops[-1] = joined
    kept = sorted({index for op in ops for index in (*op.inputs, *op.outputs)})
    places = {old: new for new, old in enumerate(kept)}
    return replace(
        plan,
        ops=tuple(
            replace(
                op,
                inputs=tuple(places[index] for index in op.inputs),
                outputs=tuple(places[index] for index in op.outputs),
            )
            for op in ops
        ),
        slots=tuple(replace(plan.slots[old], index=new) for old, new in places.items()),
        output=places[plan.output],
    )


def _join(first: Op, second: Op, reads: Counter[int]) -> Op | None:
    """Return one operation for two neighbours, None where they are no pair."""
    attributes = first.attributes + second.attributes
    if second.kind is OpKind.QUANTIZE:
        kind, (result,) = _QUANTIZED.get(first.kind), second.inputs
        if kind is None or first.outputs[-1] != result or reads[result] > 1:
            return None
        return Op(kind, first.inputs, first.outputs[:-1] + second.outputs, first.weights, attributes)
    if first.outputs != second.inputs:
        return None
    match first.kind, second.kind:
        case OpKind.ADD, OpKind.RMS_NORM:
            outputs = first.outputs + second.outputs
            return Op(OpKind.ADD_RMS_NORM, first.inputs, outputs, second.weights, attributes)
        case OpKind.QK_NORM, OpKind.ROPE_STORE if reads[first.outputs[0]] == 1:
            return Op(OpKind.QK_NORM_ROPE_STORE, first.inputs, second.outputs, first.weights, attributes)
    return None
