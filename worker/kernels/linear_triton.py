"""Launches the products of `packed_linear` (see there for the contract) with the tiles of `linear_tuning`.

Knows torch and Triton alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker.kernels import linear_tuning
from worker.kernels.aot import CHIPS, AotKernel
from worker.kernels.dtypes_triton import INTERPRETED, chip_of, compute_type
from worker.kernels.group_quantize import GROUP as ACTIVATION_GROUP
from worker.kernels.linear_kernels_triton import add_pieces_kernel, linear_kernel
from worker.kernels.linear_tuning import Tile
from worker.kernels.packed_matrix_torch import PackedMatrix

_ADDED = 256
"""Elements of a row whose pieces one program adds up."""
_ADDING_WARPS = 2
_OPTIONS: dict[str, dict[str, object]] = {
    # Left alone, the assembler keeps to fewer registers and spills into memory what it could have held.
    "sm_100": {"maxnreg": 255},
    # The compiler would take another instruction, with other sums inside, for larger tiles.
    "gfx942": {"matrix_instr_nonkdim": 16},
}
"""What a chip's compiler is told of products of 16-bit numbers and of codes."""


def kind_of(weight: PackedMatrix, dtype: torch.dtype) -> str:
    """Return the name under which `linear_tuning` keeps a product's tiles. dtype: of x, int8 if quantised."""
    if weight.scales is None:
        return "fp32" if dtype is torch.float32 else "bf16"
    activations = 8 if dtype is torch.int8 else 16
    return f"w{weight.bits}a{activations}-g{weight.group}"


def tile_of(weight: PackedMatrix, x: Tensor) -> Tile:
    """Return how x (its codes, if quantised) is multiplied."""
    return linear_tuning.tile(
        chip_of(x.device),
        kind_of(weight, x.dtype),
        out_features=weight.out_features,
        in_features=weight.in_features,
        num_rows=len(x),
    )


def room_for_pieces(weight: PackedMatrix, x: Tensor) -> int:
    """Return how many float32 numbers `linear` needs for sums of pieces; 0 for many rows."""
    tile = tile_of(weight, x)
    return tile.splits * len(x) * weight.out_features if tile.is_parallel else 0


def most_pieces(weight: PackedMatrix, dtype: torch.dtype, device: torch.device, max_rows: int) -> int:
    """Return what `room_for_pieces` is at most for up to `max_rows` rows of `dtype` (int8 if quantised)."""
    chip, kind = chip_of(device), kind_of(weight, dtype)
    shape = {"out_features": weight.out_features, "in_features": weight.in_features}
    rows = min(max_rows, linear_tuning.most_parallel_rows(chip, kind, **shape))
    tile = linear_tuning.tile(chip, kind, **shape, num_rows=rows)
    return tile.splits * rows * weight.out_features if tile.is_parallel else 0


def linear(
    x: Tensor | Sequence[Tensor],
    weight: PackedMatrix,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    pieces: Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    """Write x @ W^T (+ bias).

    Args:
        x: [rows, in] in the activation type, or codes, scales and sums as `group_quantize` gives them.
        weight: 8 bits where x is quantised.
        out: [rows, out].
        bias: [out] float32.
        pieces: Scratch of at least `room_for_pieces` float32 numbers.
        tile: For measuring; else the table's.
    """
    codes_x, scales_x, sums_x = (x, x, x) if isinstance(x, Tensor) else x
    num_rows, in_features = codes_x.shape
    assert in_features == weight.in_features, "x and W have as many columns"
    assert out.numel() < 1 << 31, "places in y are 32-bit numbers"
    if not num_rows:
        return
    tile = tile or tile_of(weight, codes_x)
    is_int8 = codes_x.dtype is torch.int8
    assert not is_int8 or weight.bits == 8, "quantised rows are multiplied by 8-bit codes"
    assert not is_int8 or in_features % ACTIVATION_GROUP == 0, "quantised rows are whole groups"
    assert weight.group == 0 or is_int8 or tile.block_k % weight.group == 0, "steps are whole groups"
    if tile.is_parallel:
        assert pieces is not None, "pieces need room"
        assert pieces.numel() >= tile.splits * num_rows * weight.out_features, "pieces need room"
    programs = triton.cdiv(num_rows, tile.block_m) * triton.cdiv(weight.out_features, tile.block_n)
    has_bias, bias = bias is not None, out if bias is None else bias
    linear_kernel[(programs, tile.splits if tile.is_parallel else 1)](
        codes_x,
        sums_x,
        scales_x,
        weight.codes,
        weight.codes if weight.scales is None else weight.scales,
        weight.codes if weight.zeros is None else weight.zeros,
        bias,
        out,
        out if pieces is None else pieces,
        num_rows,
        weight.out_features,
        in_features,
        **_constexprs(tile, bits=weight.bits, group=weight.group, dtype=codes_x.dtype, is_cuda=_is_cuda()),
        HAS_ZEROS=weight.zeros is not None,
        # Where pieces are apart, it is added to their sum.
        HAS_BIAS=has_bias and not tile.is_parallel,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=False,
        **_options(chip_of(codes_x.device), codes_x.dtype),
    )
    if tile.is_parallel:
        add_pieces_kernel[(num_rows, triton.cdiv(weight.out_features, _ADDED))](
            pieces,
            bias,
            out,
            num_rows,
            weight.out_features,
            HAS_BIAS=has_bias,
            SPLITS=tile.splits,
            BLOCK_N=_ADDED,
            num_warps=_ADDING_WARPS,
            enable_fp_fusion=False,
        )


def _options(chip: str, dtype: torch.dtype) -> dict[str, object]:
    """Return options of a launch beside its tile. dtype: of x, or int8."""
    is_unbounded = chip == "sm_100" and dtype is torch.float32
    return {} if is_unbounded else _OPTIONS.get(chip, {})


def _is_cuda() -> bool:
    return not INTERPRETED and torch.version.hip is None


def _constexprs(tile: Tile, *, bits: int, group: int, dtype: torch.dtype, is_cuda: bool) -> dict[str, object]:
    is_int8 = dtype is torch.int8
    return {
        "BITS": bits,
        "IS_INT8": is_int8,
        "GROUP": group,
        "SPLITS": tile.splits,
        "IS_PARALLEL": tile.is_parallel,
        "BLOCK_N": tile.block_n,
        "BLOCK_M": tile.block_m,
        "BLOCK_K": ACTIVATION_GROUP if is_int8 else tile.block_k,
        "COMPUTE": tl.int8 if is_int8 else compute_type(dtype),
        "USES_PTX": is_cuda and bits == 4 and dtype is not torch.float32,
    }


@dataclass(frozen=True, slots=True)
class Form:
    """What a product is launched with beside its tile."""

    dtype: torch.dtype = torch.bfloat16
    """Of activations, scales and dense weights."""
    has_zeros: bool = True
    """Whether codes have zero points."""
    has_bias: bool = True


_FORMS = (
    Form(),
    Form(torch.float16, has_bias=False),
    Form(torch.float16, has_zeros=False),
    Form(has_zeros=False, has_bias=False),
)
"""Any two values of different fields are in one of them."""


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield every tile of the chip's ladders in one form each, in turns over tiles and chips.

    A form changes what a step loads and not what it holds: one number of a group, or of a row at the end.
    Logits are dense products with a float32 result and no bias. What the other forms take is in no table;
    all of sm_100 with rows of 16 bits were compiled once, and none spilled: at most 242 registers.
    """
    turn = CHIPS.index(chip)
    for kind in linear_tuning.kinds(chip):
        for shape in linear_tuning.shapes(chip, kind):
            for place, tile in enumerate(linear_tuning.ladder(chip, kind, shape), turn):
                kernel = aot_kernel(chip, kind, tile, _FORMS[place % len(_FORMS)])
                # Entries of a shape of their own may share sizes with the one for all.
                yield kernel if shape == "*" else replace(kernel, name=f"{kernel.name}-{shape}")
    for place, tile in enumerate(linear_tuning.ladder(chip, "bf16"), turn):
        # Pieces are float32 whatever their sum becomes.
        if not tile.is_parallel:
            kernel = aot_kernel(chip, "bf16", tile, Form(_FORMS[place % len(_FORMS)].dtype, has_bias=False))
            signature = {**kernel.signature, **dict.fromkeys(("bias", "y"), "*fp32")}
            yield replace(kernel, name=f"{kernel.name}-logits", signature=signature)
    for y, has_bias in (("bf16", True), ("bf16", False), ("fp16", True), ("fp16", False), ("fp32", False)):
        yield AotKernel(
            name=f"add-pieces-{y}" + "-bias" * has_bias,
            function=add_pieces_kernel,
            signature={
                "pieces": "*fp32",
                "bias": "*fp32" if has_bias else f"*{y}",
                "y": f"*{y}",
                **dict.fromkeys(("M", "N"), "i32"),
            },
            constexprs={"HAS_BIAS": has_bias, "SPLITS": 2, "BLOCK_N": _ADDED},
            aligned=frozenset({"N"}),
            num_warps=_ADDING_WARPS,
        )


def aot_kernel(chip: str, kind: str, tile: Tile, form: Form = _FORMS[0]) -> AotKernel:
    """Return how a product is compiled with one tile."""
    format_name, _, group = kind.partition("-g")
    is_int8, is_dense = format_name == "w8a8", not group
    dtype = torch.float32 if kind == "fp32" else form.dtype
    name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    has_zeros, has_bias = form.has_zeros and not is_dense, form.has_bias and not tile.is_parallel
    bits = 16 if is_dense else int(format_name[1])
    codes = f"*{name}" if is_dense else {8: "*i8", 4: "*u8"}[bits]
    x = "*i8" if is_int8 else f"*{name}"
    return AotKernel(
        name=f"{kind}-{name}-m{tile.block_m}"
        + "-zeros" * has_zeros
        + "-bias" * has_bias
        + ("-pieces" if tile.is_parallel else "-whole" * (tile.splits == 1)),
        function=linear_kernel,
        signature={
            "x": x,
            **dict.fromkeys(("sums_x", "scales_x"), "*fp32" if is_int8 else x),
            "codes": codes,
            "scales": f"*{name}",
            "zeros": codes if is_dense else "*i8",
            "bias": "*fp32" if has_bias else f"*{name}",
            "pieces": "*fp32",
            "y": f"*{name}",
            **dict.fromkeys(("M", "N", "K"), "i32"),
        },
        constexprs={
            **_constexprs(
                tile,
                bits=bits,
                group=int(group or 0),
                dtype=torch.int8 if is_int8 else dtype,
                is_cuda=chip.startswith("sm"),
            ),
            "HAS_ZEROS": has_zeros,
            "HAS_BIAS": has_bias,
        },
        aligned=frozenset({"N", "K"}),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        options=_options(chip, dtype),
    )
