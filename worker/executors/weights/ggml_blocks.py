"""Decodes ggml's blocks into codes, scales and offsets, without rounding anything.

Knows the layout of each block format; knows nothing of files, parameters or row orders. Formats that no group
of 16 to 128 codes of at most 8 bits can hold more exactly than float32 would (Q2_K, Q3_K) are not here.

Source: ggml-common.h and ggml-quants.c of ggml. Every scale is a 16-bit float times an integer of at most
7 bits, so its float32 is exact, and so is `scale * code` in every format.
"""

from collections.abc import Callable

import numpy as np

from services.artifacts.tensors import TensorRef
from worker.executors.weights.quantized import CodeLayout, Float32, QuantizedMatrix, UInt8

_Parts = tuple[UInt8, Float32, Float32]
"""Codes [blocks, block size], scales and offsets [blocks, groups in a block]."""


def decode_blocks(tensor: TensorRef) -> QuantizedMatrix | None:
    """Return a matrix stored in ggml blocks as codes; None for vectors and for formats not decoded here."""
    layout = _LAYOUTS.get(tensor.dtype)
    if layout is None or len(tensor.shape) != 2:
        return None
    bits, group, decode = layout
    codes, scales, offsets = decode(tensor.raw().reshape(-1, tensor.format.block_bytes))
    rows, columns = tensor.shape
    groups = (rows, columns // group)
    return QuantizedMatrix(
        codes.reshape(rows, columns), bits, group, scales.reshape(groups), offsets.reshape(groups)
    )


def layout_of(tensor: TensorRef) -> CodeLayout | None:
    """Return how `decode_blocks` will hold a matrix; None where it gives None."""
    layout = _LAYOUTS.get(tensor.dtype)
    if layout is None or len(tensor.shape) != 2:
        return None
    bits, group, _ = layout
    return CodeLayout(bits, group, tensor.dtype in _WITH_OFFSETS)


def _q8_0(blocks: UInt8) -> _Parts:
    """d, then 32 signed bytes."""
    scales = _halves(blocks, 0)
    return blocks[:, 2:] ^ np.uint8(0x80), scales, scales * np.float32(-128)


def _q4_0(blocks: UInt8) -> _Parts:
    """d, then 32 nibbles that mean -8 to 7."""
    scales = _halves(blocks, 0)
    return _nibbles(blocks[:, 2:]), scales, scales * np.float32(-8)


def _q4_1(blocks: UInt8) -> _Parts:
    """d, m, then 32 nibbles."""
    return _nibbles(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2)


def _q5_0(blocks: UInt8) -> _Parts:
    """d, the fifth bits of 32 codes, then their nibbles; they mean -16 to 15."""
    scales = _halves(blocks, 0)
    return _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), scales, scales * np.float32(-16)


def _q5_1(blocks: UInt8) -> _Parts:
    """d, m, the fifth bits, then the nibbles."""
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), _halves(blocks, 0), _halves(blocks, 2)


def _q4_k(blocks: UInt8) -> _Parts:
    """d, dmin, 8 pairs of 6-bit scale and minimum, then nibbles of 4 x 2 x 32 codes."""
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    codes = _nibbles(blocks[:, 16:].reshape(-1, 32)).reshape(len(blocks), 256)
    return codes, _halves(blocks, 0) * scales, -(_halves(blocks, 2) * minima)


def _q5_k(blocks: UInt8) -> _Parts:
    """As Q4_K, with 32 bytes before the nibbles: bit g of byte i is the fifth bit of code i of group g."""
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    codes = _nibbles(blocks[:, 48:].reshape(-1, 32)).reshape(len(blocks), 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    codes |= ((blocks[:, None, 16:48] >> shifts) & 1) << 4
    return codes.reshape(len(blocks), 256), _halves(blocks, 0) * scales, -(_halves(blocks, 2) * minima)


def _q6_k(blocks: UInt8) -> _Parts:
    """Two halves of 128 codes: nibbles of 2 x 64, upper bits in pairs; 16 signed scales; d. Less 32."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 0x0F, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    high: UInt8 = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
    scales = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (low | (high << np.uint8(4))).reshape(-1, 256), scales, scales * np.float32(-32)


_LAYOUTS: dict[str, tuple[int, int, Callable[[UInt8], _Parts]]] = {
    "Q8_0": (8, 32, _q8_0),
    "Q4_0": (4, 32, _q4_0),
    "Q4_1": (4, 32, _q4_1),
    "Q5_0": (8, 32, _q5_0),
    "Q5_1": (8, 32, _q5_1),
    "Q4_K": (4, 32, _q4_k),
    "Q5_K": (8, 32, _q5_k),
    "Q6_K": (8, 16, _q6_k),
}
"""Format -> bits, group, decoder. Codes of 5 and 6 bits take 8."""
_WITH_OFFSETS = frozenset({"Q4_1", "Q5_1", "Q4_K", "Q5_K"})


def _halves(blocks: UInt8, offset: int) -> Float32:
    """Return the 16-bit float at a byte offset of every block, [blocks, 1]."""
    return blocks[:, offset : offset + 2].copy().view("<f2").astype(np.float32)


def _nibbles(packed: UInt8) -> UInt8:
    """Return [n, w] bytes as [n, 2 w] codes: all low nibbles, then all high ones."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _fifth_bits(packed: UInt8) -> UInt8:
    """Return bit i of a little-endian word as 16 or 0, [n, 32]."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _six_bit_pairs(packed: UInt8) -> tuple[Float32, Float32]:
    """Return the 8 scales and 8 minima of 12 bytes, [n, 8] each.

    Bytes 0-3 and 4-7 hold scales and minima 0-3 in their lower six bits, and the upper two bits of scales and
    minima 4-7 above them; bytes 8-11 hold the lower four bits of those, scales in the low nibble.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)
