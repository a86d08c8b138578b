"""Says what a model's weights take on a GPU at least, before the first one is read.

Knows how files hold matrices and which of them the kernels may take as codes; knows nothing of the numbers.
So it shows only at load whether a zero point is a whole one, without which a matrix becomes 16-bit floats.
"""

from math import prod

from worker.executors.weights.gpu_layout import GROUPS
from worker.executors.weights.loader import WeightSource
from worker.executors.weights.quantized import CodeLayout
from worker.plan.op import OpKind, Plan


def least_bytes(plan: Plan, weights: WeightSource) -> int:
    """Return the bytes of all parameters, each in the narrowest form that it can have on a device.

    Worked number: 4,096 x 4,096 in 4 bits with a 16-bit scale for each 128: 8,388,608 + 262,144; as floats
    33,554,432.
    """
    tables = {name for op in plan.ops if op.kind is OpKind.EMBED for name in op.weights}
    return sum(
        _parameter_bytes(shape, None if name in tables else weights.layout_of(name))
        for name, shape in plan.parameters.items()
    )


def _parameter_bytes(shape: tuple[int, ...], layout: CodeLayout | None) -> int:
    """Return the bytes of one parameter; without codes a matrix has 16-bit numbers."""
    count = prod(shape)
    if len(shape) == 1:
        return 4 * count
    if layout is None or layout.group not in GROUPS:
        return 2 * count
    return count * layout.bits // 8 + 2 * (count // layout.group)
