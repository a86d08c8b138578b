"""Blocks of ggml's K formats with random codes, for models that need no values of their own.

The gguf package reads these formats and does not write them. Knows the blocks' layout; knows nothing of what
a tensor is for.

Source: ggml, `block_q4_K`, `block_q5_K` and `block_q6_K`.
"""

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from services.artifacts.tensors import FORMATS

K_FORMATS = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Byte offsets of the 16-bit floats in a block: what scales are multiplied by, then what minima are."""


def random_blocks(shape: tuple[int, int], kind: str, seed: int, deviation: float = 0.15) -> NDArray[np.uint8]:
    """Return a matrix's blocks [rows, bytes]: every code and scale, values of about that deviation.

    Args:
        shape: Rows and columns; columns are whole blocks of 256.
    """
    size = FORMATS[kind]
    draw = np.random.default_rng(seed)
    num_blocks = shape[0] * shape[1] // size.block_size
    blocks = draw.integers(0, 256, (num_blocks, size.block_bytes), np.uint8)
    scale, *minimum = K_FORMATS[kind]
    _set_half(blocks, scale, 1.0)
    if minimum:
        # A minimum for each scale, equal to it, so that values lie around 0 as those of a model do.
        blocks[:, 8:12] = blocks[:, 4:8]
        blocks[:, 12:16] = (blocks[:, 12:16] & 0xF) * 0x11
        _set_half(blocks, minimum[0], {"Q4_K": 7.5, "Q5_K": 15.5}[kind])
    values = dequantize(blocks, GGMLQuantizationType[kind])
    factor = deviation / float(values.std())
    for offset in K_FORMATS[kind]:
        _set_half(blocks, offset, factor * float(blocks[0, offset : offset + 2].view("<f2")[0]))
    return blocks.reshape(shape[0], -1)


def _set_half(blocks: NDArray[np.uint8], offset: int, value: float) -> None:
    blocks[:, offset : offset + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
