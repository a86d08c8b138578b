"""Says what the slots of a plan hold where it is not numbers of the type of activations.

Knows plans alone.
"""

from worker.plan.op import OpKind, Plan

_MAKERS = frozenset(
    {OpKind.QUANTIZE, OpKind.RMS_NORM_QUANTIZE, OpKind.ADD_RMS_NORM_QUANTIZE, OpKind.ACT_MUL_QUANTIZE}
)


def code_slots(plan: Plan) -> frozenset[int]:
    """Return the slots that hold codes, scales and sums."""
    return frozenset(op.outputs[-1] for op in plan.ops if op.kind in _MAKERS)


def float_slots(plan: Plan) -> list[bool]:
    """Return which slots are float32 whatever activations are: logits and what is made of them."""
    is_float = [False] * len(plan.slots)
    for op in plan.ops:
        if op.kind is OpKind.LOGITS or any(is_float[index] for index in op.inputs):
            for index in op.outputs:
                is_float[index] = True
    return is_float
