"""Says what a model's weights will take packed, before the first one is read.

Knows the arithmetic of `packed.h` and how files hold matrices; knows nothing of the numbers in them.
"""

from worker.executors.weights.loader import WeightSource
from worker.executors.weights.quantized import CodeLayout
from worker.plan.op import Plan

_TILE = 16
"""Rows that lie together."""
_LINE = 64
"""Bytes."""
_FLOAT = 4


def packed_bytes(plan: Plan, weights: WeightSource) -> int:
    """Return the bytes of all parameters as the native executor holds them.

    Exact but for what only the numbers say: float32 matrices that turn out to be exact in 16 bits take half,
    and checkpoints with zero points that are all the same have no offsets.

    Worked number: 576 columns of Q4_1 are 288 bytes of codes, 18 groups of scale and offset of 2 bytes, and a
    row's power of 4 bytes: 364 bytes a row; a matrix of 16 rows has 64 bytes in front: 5,888.
    """
    return sum(_parameter_bytes(name, shape, weights) for name, shape in plan.parameters.items())


def _parameter_bytes(name: str, shape: tuple[int, ...], weights: WeightSource) -> int:
    if len(shape) == 1:
        return _FLOAT * shape[0]
    tiles = -(-shape[0] // _TILE)
    layout = weights.layout_of(name)
    if layout is not None:
        return _LINE + tiles * _tile_bytes(shape[1], layout)
    return tiles * _TILE * shape[1] * weights.float_bytes(name)


def _tile_bytes(columns: int, layout: CodeLayout) -> int:
    scales = columns // layout.group * _TILE * (4 if layout.has_offsets else 2)
    return _TILE * 4 + -(-scales // _LINE) * _LINE + columns * _TILE * layout.bits // 8
