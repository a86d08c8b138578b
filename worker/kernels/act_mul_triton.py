"""`act_mul` in Triton, also quantised (see `act_mul` for the contract).

Knows torch and Triton alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Iterator, Sequence
from itertools import product

import triton
import triton.language as tl
from torch import Tensor

from worker.kernels.act_mul import GELU_CUBIC, GELU_SCALE
from worker.kernels.aot import AotKernel
from worker.kernels.group_quantize_triton import store_groups

_GELU_SCALE = tl.constexpr(GELU_SCALE)
_GELU_CUBIC = tl.constexpr(GELU_CUBIC)

_BLOCK = 1024
_NUM_WARPS = 4


@triton.jit
def act_mul_kernel(
    x, y, codes, scales, sums, width, IS_GELU: tl.constexpr, QUANTISES: tl.constexpr, BLOCK: tl.constexpr
):
    """Gate one piece of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(x + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    # (1 + tanh(z)) / 2 is the logistic function of 2 z.
    z = 2.0 * _GELU_SCALE * (gate + _GELU_CUBIC * gate * gate * gate) if IS_GELU else gate
    rounded = (gate / (1.0 + tl.exp(-z)) * up).to(x.dtype.element_ty)
    if QUANTISES:
        first_group = row * (width // 32)
        store_groups(
            rounded.to(tl.float32), columns, width,
            codes + row * width, scales + first_group, sums + first_group, BLOCK,
        )  # fmt: skip
    else:
        tl.store(y + row * width + columns, rounded, mask=inside)


def silu_mul(x: Tensor, out: Tensor | None, quantised: Sequence[Tensor] | None = None) -> None:
    """Write silu(left half of x) * right half.

    Args:
        x: [rows, 2 * width].
        out: [rows, width], or None with `quantised`.
        quantised: Codes, scales and sums, written instead of `out`.
    """
    _launch(x, out, quantised, is_gelu=False)


def gelu_tanh_mul(x: Tensor, out: Tensor | None, quantised: Sequence[Tensor] | None = None) -> None:
    """Write gelu(left half of x) * right half; arguments as in `silu_mul`."""
    _launch(x, out, quantised, is_gelu=True)


def _launch(x: Tensor, out: Tensor | None, quantised: Sequence[Tensor] | None, *, is_gelu: bool) -> None:
    assert (out is None) == (quantised is not None), "rows go to one of the two"
    rows, width = len(x), x.shape[1] // 2
    if not rows:
        return
    codes, scales, sums = quantised or (x, x, x)
    act_mul_kernel[(rows, triton.cdiv(width, _BLOCK))](
        x,
        x if out is None else out,
        codes,
        scales,
        sums,
        width,
        IS_GELU=is_gelu,
        QUANTISES=quantised is not None,
        BLOCK=_BLOCK,
        num_warps=_NUM_WARPS,
        enable_fp_fusion=False,
    )


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield every form, the same on every chip."""
    for dtype, is_gelu, quantises in product(("bf16", "fp16"), (False, True), (False, True)):
        yield AotKernel(
            name=f"{'gelu' if is_gelu else 'silu'}-{dtype}{'-int8' * quantises}",
            function=act_mul_kernel,
            signature={
                **dict.fromkeys(("x", "y"), f"*{dtype}"),
                "codes": "*i8" if quantises else f"*{dtype}",
                **dict.fromkeys(("scales", "sums"), "*fp32" if quantises else f"*{dtype}"),
                "width": "i32",
            },
            constexprs={"IS_GELU": is_gelu, "QUANTISES": quantises, "BLOCK": _BLOCK},
            aligned=frozenset({"width"}),
            num_warps=_NUM_WARPS,
        )
