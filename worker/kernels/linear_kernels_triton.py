"""The kernels of `packed_linear` (see there for the contract); `linear_triton` launches them.

Every tile holds y transposed, [rows of W, rows of x]: W is the left operand of the product. A few rows of x
then still fill the matrix unit's fixed side, W's codes become floats in registers, and tiles of 16 and of 128
rows multiply with the same instruction.

Knows torch and Triton alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from worker.kernels.packed_linear import INT4_CENTRE

_CENTRE4 = tl.constexpr(INT4_CENTRE)
_SWIZZLE = tl.constexpr(8)
"""Tiles of W that neighbouring programs pass over together, so that both operands stay in the cache."""

_NIBBLES = """
{{
  .reg .b32 low, high, p0, p1, p2, p3, one, nothing;
  mov.b32 one, {one};
  mov.b32 nothing, 0x80008000;
  and.b32 low, $4, 0x0f0f0f0f;
  shr.u32 high, $4, 4;
  and.b32 high, high, 0x0f0f0f0f;
  prmt.b32 p0, low, {magic}, 0x4140;
  prmt.b32 p1, low, {magic}, 0x4342;
  prmt.b32 p2, high, {magic}, 0x4140;
  prmt.b32 p3, high, {magic}, 0x4342;
  fma.rn.{type} p0, p0, one, $7;
  fma.rn.{type} p1, p1, one, $8;
  fma.rn.{type} p2, p2, one, $7;
  fma.rn.{type} p3, p3, one, $8;
  fma.rn.{type} $0, p0, $5, nothing;
  fma.rn.{type} $1, p1, $6, nothing;
  fma.rn.{type} $2, p2, $5, nothing;
  fma.rn.{type} $3, p3, $6, nothing;
}}
"""
NIBBLES_BF16 = tl.constexpr(_NIBBLES.format(magic="0x43434343", one="0x3f803f80", type="bf16x2"))
"""Four bytes -> their low and high codes as scale * (code - zero), two numbers in a register.

A code beside the byte 0x43 is the bfloat16 128 + code; $7 and $8 are -(128 + zero), $5 and $6 the scale.
Differences are exact. Adding -0 keeps a product as it is."""
NIBBLES_FP16 = tl.constexpr(_NIBBLES.format(magic="0x64646464", one="0x3c003c00", type="f16x2"))
"""The same in float16, where a code beside the byte 0x64 is 1024 + code."""


@triton.jit
def _of_groups(values, NUM: tl.constexpr, WIDTH: tl.constexpr):
    """Repeat a value per row and group for each of its columns: [N, NUM] -> [N, NUM * WIDTH]."""
    rows: tl.constexpr = values.shape[0]
    if NUM == 1:
        wide = tl.broadcast_to(values, [rows, WIDTH])
    else:
        wide = tl.reshape(tl.broadcast_to(tl.expand_dims(values, 2), [rows, NUM, WIDTH]), [rows, NUM * WIDTH])
    return wide


@triton.jit
def _int4_tiles(
    codes, scales, zeros, HAS_ZEROS: tl.constexpr, NUM: tl.constexpr, WIDTH: tl.constexpr,
    DTYPE: tl.constexpr, COMPUTE: tl.constexpr, USES_PTX: tl.constexpr,
):  # fmt: skip
    """Return the values of the low and of the high codes, each [N, NUM * WIDTH]."""
    if USES_PTX:
        IS_BF16: tl.constexpr = DTYPE == tl.bfloat16  # noqa: SIM300
        base: tl.constexpr = 128.0 if IS_BF16 else 1024.0
        if HAS_ZEROS:
            bias = _of_groups((-base - zeros.to(tl.float32)).to(DTYPE), NUM, WIDTH)
        else:
            bias = tl.full([codes.shape[0], NUM * WIDTH], -base - _CENTRE4, DTYPE)
        arguments = [codes, _of_groups(scales, NUM, WIDTH), bias]
        places: tl.constexpr = "=r,=r,=r,=r,r,r,r,r,r"
        if IS_BF16:
            low, high = tl.inline_asm_elementwise(
                NIBBLES_BF16, places, arguments, (tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
            )
        else:
            low, high = tl.inline_asm_elementwise(
                NIBBLES_FP16, places, arguments, (tl.float16, tl.float16), is_pure=True, pack=4
            )
    else:
        scale = _of_groups(scales.to(tl.float32), NUM, WIDTH)
        centre = _of_groups(zeros.to(tl.float32), NUM, WIDTH) if HAS_ZEROS else _CENTRE4 * 1.0
        low = (((codes & 15).to(tl.float32) - centre) * scale).to(DTYPE).to(COMPUTE)
        high = (((codes >> 4).to(tl.float32) - centre) * scale).to(DTYPE).to(COMPUTE)
    return low, high


@triton.jit
def _sum_piece(
    x, codes, scales, zeros, rows, columns, M, N, K, first, last,
    BITS: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, COMPUTE: tl.constexpr, USES_PTX: tl.constexpr,
):  # fmt: skip
    """Return W's `rows` times x's `columns` over K from `first` to `last`: [BLOCK_N, BLOCK_M] float32."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    x_inside, w_inside = (columns < M)[None, :], (rows < N)[:, None]
    x_rows = x + columns.to(tl.int64)[None, :] * K
    row64 = rows.to(tl.int64)[:, None]
    for start in range(first, last, BLOCK_K):
        if BITS == 16:
            k = start + tl.arange(0, BLOCK_K)
            w = tl.load(codes + row64 * K + k[None, :], mask=w_inside & (k < K)[None, :], other=0.0)
            part = tl.load(x_rows + k[:, None], mask=x_inside & (k < K)[:, None], other=0.0)
            total = tl.dot(w.to(COMPUTE), part.to(COMPUTE), total, input_precision="ieee")
        else:
            NUM: tl.constexpr = BLOCK_K // GROUP
            groups = start // GROUP + tl.arange(0, NUM)
            places = row64 * (K // GROUP) + groups[None, :]
            used = w_inside & (groups < K // GROUP)[None, :]
            scale = tl.load(scales + places, mask=used, other=0.0)
            zero = tl.load(zeros + places, mask=used, other=0) if HAS_ZEROS else scale
            if BITS == 8:
                k = start + tl.arange(0, BLOCK_K)
                code = tl.load(codes + row64 * K + k[None, :], mask=w_inside & (k < K)[None, :], other=0)
                part = tl.load(x_rows + k[:, None], mask=x_inside & (k < K)[:, None], other=0.0)
                value = code.to(tl.float32)
                if HAS_ZEROS:
                    value -= _of_groups(zero.to(tl.float32), NUM, GROUP)
                w = (value * _of_groups(scale.to(tl.float32), NUM, GROUP)).to(DTYPE)
                total = tl.dot(w.to(COMPUTE), part.to(COMPUTE), total, input_precision="ieee")
            else:
                HALF: tl.constexpr = GROUP // 2
                byte = tl.arange(0, BLOCK_K // 2)
                k = start + byte // HALF * GROUP + byte % HALF
                k_inside = k < K
                code = tl.load(
                    codes + row64 * (K // 2) + (start // 2 + byte)[None, :],
                    mask=w_inside & k_inside[None, :], other=0,
                )  # fmt: skip
                low, high = _int4_tiles(
                    code, scale, zero, HAS_ZEROS, NUM, HALF, DTYPE, COMPUTE, USES_PTX
                )  # fmt: skip
                inside = x_inside & k_inside[:, None]
                of_low = tl.load(x_rows + k[:, None], mask=inside, other=0.0)
                of_high = tl.load(x_rows + k[:, None] + HALF, mask=inside, other=0.0)
                total = tl.dot(low, of_low.to(COMPUTE), total, input_precision="ieee")
                total = tl.dot(high, of_high.to(COMPUTE), total, input_precision="ieee")
    return total


@triton.jit
def _sum_piece_int8(
    codes_x, scales_x, sums_x, codes, scales, zeros, rows, columns, M, N, K, first, last,
    GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return the same of quantised x; BLOCK_K is the group of activations."""
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    x_inside, w_inside = columns < M, rows < N
    row64, column64 = rows.to(tl.int64), columns.to(tl.int64)
    for start in range(first, last, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        w = tl.load(codes + row64[:, None] * K + k[None, :], mask=w_inside[:, None], other=0)
        part = tl.load(codes_x + column64[None, :] * K + k[:, None], mask=x_inside[None, :], other=0)
        product = tl.dot(w, part, out_dtype=tl.int32).to(tl.float32)
        of_x = column64 * (K // BLOCK_K) + start // BLOCK_K
        of_w = row64 * (K // GROUP) + start // GROUP
        scaled = product * tl.load(scales_x + of_x, mask=x_inside, other=0.0)[None, :]
        if HAS_ZEROS:
            zero = tl.load(zeros + of_w, mask=w_inside, other=0).to(tl.float32)
            x_sum = tl.load(sums_x + of_x, mask=x_inside, other=0.0)
            scaled = tl.fma(
                tl.broadcast_to(-zero[:, None], [BLOCK_N, BLOCK_M]),
                tl.broadcast_to(x_sum[None, :], [BLOCK_N, BLOCK_M]),
                scaled,
            )
        scale = tl.load(scales + of_w, mask=w_inside, other=0.0).to(tl.float32)
        total = tl.fma(scaled, tl.broadcast_to(scale[:, None], [BLOCK_N, BLOCK_M]), total)
    return total


@triton.jit
def _finish(total, y, bias, rows, columns, M, N, HAS_BIAS: tl.constexpr):
    """Round a tile of sums, [rows of W, rows of x], and store it."""
    places = columns[None, :] * N + rows[:, None]
    inside = (columns < M)[None, :] & (rows < N)[:, None]
    if HAS_BIAS:
        total += tl.load(bias + rows, mask=rows < N, other=0.0)[:, None]
    tl.store(y + places, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def linear_kernel(
    x, sums_x, scales_x, codes, scales, zeros, bias, y, pieces, M, N, K,
    BITS: tl.constexpr, IS_INT8: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr, SPLITS: tl.constexpr, IS_PARALLEL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, COMPUTE: tl.constexpr,
    USES_PTX: tl.constexpr,
):  # fmt: skip
    """Multiply one tile: all pieces of K, or (IS_PARALLEL) the one of program_id(1), into `pieces`."""
    # 1. Which tile: neighbours share rows of W within a band of _SWIZZLE tiles of them.
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    band = program // (_SWIZZLE * tiles_m)
    height = min(tiles_n - band * _SWIZZLE, _SWIZZLE)
    inside = program % (_SWIZZLE * tiles_m)
    rows = (band * _SWIZZLE + inside % height) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = inside // height * BLOCK_M + tl.arange(0, BLOCK_M)
    # 2. Pieces, in order.
    length = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLITS) * BLOCK_K
    first_piece = tl.program_id(1) if IS_PARALLEL else 0
    num_pieces: tl.constexpr = 1 if IS_PARALLEL else SPLITS
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for piece in range(first_piece, first_piece + num_pieces):
        first, last = piece * length, min((piece + 1) * length, K)
        if IS_INT8:
            total += _sum_piece_int8(
                x, scales_x, sums_x, codes, scales, zeros, rows, columns, M, N, K, first, last,
                GROUP, HAS_ZEROS, BLOCK_N, BLOCK_M, BLOCK_K,
            )  # fmt: skip
        else:
            total += _sum_piece(
                x, codes, scales, zeros, rows, columns, M, N, K, first, last,
                BITS, GROUP, HAS_ZEROS, BLOCK_N, BLOCK_M, BLOCK_K, COMPUTE, USES_PTX,
            )  # fmt: skip
    # 3. Results, or this piece's sums.
    if IS_PARALLEL:
        places = (first_piece * M + columns)[None, :] * N + rows[:, None]
        tl.store(pieces + places, total, mask=(columns < M)[None, :] & (rows < N)[:, None])
    else:
        _finish(total, y, bias, rows, columns, M, N, HAS_BIAS)


@triton.jit
def add_pieces_kernel(
    pieces, bias, y, M, N,
    HAS_BIAS: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add up the pieces of BLOCK_N elements of one row of y, in order, as `linear_kernel` does."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_N, 1], tl.float32)
    for piece in range(SPLITS):
        places = (piece * M + row) * N + columns
        total += tl.load(pieces + places, mask=columns < N, other=0.0)[:, None]
    _finish(total, y, bias, columns, row + tl.arange(0, 1), M, N, HAS_BIAS)
