"""Launches the products of `packed_linear` (see there for the contract) with the tiles of `linear_tuning`.

Knows torch and Triton alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

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
_HIP_OPTIONS = {"matrix_instr_nonkdim": 16}
"""AMD's compiler would take another instruction, with other sums inside, for larger tiles."""


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
    residual: Tensor | None = None,
    pieces: Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    """Write x @ W^T (+ bias) (+ residual).

    Args:
        x: [rows, in] in the activation type, or codes, scales and sums as `group_quantize` gives them.
        weight: 8 bits where x is quantised.
        out: [rows, out].
        bias: [out] float32.
        residual: Like out; may be `out`.
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
    epilogue = {"HAS_BIAS": bias is not None, "HAS_RESIDUAL": residual is not None, "SPLITS": tile.splits}
    bias, residual = out if bias is None else bias, out if residual is None else residual
    linear_kernel[(programs, tile.splits if tile.is_parallel else 1)](
        codes_x,
        sums_x,
        scales_x,
        weight.codes,
        weight.codes if weight.scales is None else weight.scales,
        weight.codes if weight.zeros is None else weight.zeros,
        bias,
        residual,
        out,
        out if pieces is None else pieces,
        num_rows,
        weight.out_features,
        in_features,
        **_constexprs(tile, bits=weight.bits, group=weight.group, dtype=codes_x.dtype, is_cuda=_is_cuda()),
        HAS_ZEROS=weight.zeros is not None,
        **epilogue,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=False,
        **(_HIP_OPTIONS if torch.version.hip else {}),
    )
    if tile.is_parallel:
        add_pieces_kernel[(num_rows, triton.cdiv(weight.out_features, _ADDED))](
            pieces,
            bias,
            residual,
            out,
            num_rows,
            weight.out_features,
            **epilogue,
            BLOCK_N=_ADDED,
            num_warps=_ADDING_WARPS,
            enable_fp_fusion=False,
        )


def _is_cuda() -> bool:
    return not INTERPRETED and torch.version.hip is None


def _constexprs(tile: Tile, *, bits: int, group: int, dtype: torch.dtype, is_cuda: bool) -> dict[str, object]:
    is_int8 = dtype is torch.int8
    return {
        "BITS": bits,
        "IS_INT8": is_int8,
        "GROUP": group,
        "IS_PARALLEL": tile.is_parallel,
        "BLOCK_N": tile.block_n,
        "BLOCK_M": tile.block_m,
        "BLOCK_K": ACTIVATION_GROUP if is_int8 else tile.block_k,
        "COMPUTE": tl.int8 if is_int8 else compute_type(dtype),
        "USES_PTX": is_cuda and bits == 4 and dtype is not torch.float32,
    }


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield every step of the chip's ladders: bfloat16 with bias and zero points, float16 in one format.

    Logits are the dense ones with a float32 result and nothing added. Every format and group is also compiled
    in float16, symmetric and with nothing added, for one chip, in turns.
    """
    for place, kind in enumerate(linear_tuning.kinds(chip), CHIPS.index(chip)):
        if place % len(CHIPS) == 0 and kind != "fp32":
            kernel = aot_kernel(chip, kind, linear_tuning.ladder(chip, kind)[-1], torch.float16)
            bare = {"HAS_ZEROS": False, "HAS_BIAS": False, "HAS_RESIDUAL": False}
            yield replace(kernel, name=f"{kernel.name}-symmetric", constexprs={**kernel.constexprs, **bare})
    for kind in linear_tuning.kinds(chip):
        for shape in linear_tuning.shapes(chip, kind):
            for tile in linear_tuning.ladder(chip, kind, shape):
                kernel = aot_kernel(chip, kind, tile)
                # Entries of a shape of their own may share sizes with the one for all.
                yield kernel if shape == "*" else replace(kernel, name=f"{kernel.name}-{shape}")
    for tile in linear_tuning.ladder(chip, "w4a16-g128")[:1]:
        yield aot_kernel(chip, "w4a16-g128", tile, torch.float16)
    for tile in linear_tuning.ladder(chip, "bf16"):
        kernel = aot_kernel(chip, "bf16", tile)
        yield replace(
            kernel,
            name=f"{kernel.name}-logits",
            signature={**kernel.signature, **dict.fromkeys(("bias", "residual", "y"), "*fp32")},
            constexprs={**kernel.constexprs, "HAS_BIAS": False, "HAS_RESIDUAL": False},
        )
    for name, out, adds in (("add-pieces", "*bf16", True), ("add-pieces-logits", "*fp32", False)):
        yield AotKernel(
            name=name,
            function=add_pieces_kernel,
            signature={
                **dict.fromkeys(("pieces", "bias"), "*fp32"),
                **dict.fromkeys(("residual", "y"), out),
                **dict.fromkeys(("M", "N"), "i32"),
            },
            constexprs={"HAS_BIAS": adds, "HAS_RESIDUAL": adds, "SPLITS": 2, "BLOCK_N": _ADDED},
            aligned=frozenset({"N"}),
            num_warps=_ADDING_WARPS,
        )


def aot_kernel(chip: str, kind: str, tile: Tile, dtype: torch.dtype = torch.bfloat16) -> AotKernel:
    """Return how a product is compiled with one tile; with bias, and zero points where it has codes."""
    format_name, _, group = kind.partition("-g")
    is_int8, is_dense = format_name == "w8a8", not group
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    if format_name == "fp32":
        name, dtype = "fp32", torch.float32
    bits = 16 if is_dense else int(format_name[1])
    codes = f"*{name}" if is_dense else {8: "*i8", 4: "*u8"}[bits]
    x = "*i8" if is_int8 else f"*{name}"
    return AotKernel(
        name=f"{kind}-{name}-m{tile.block_m}" + "-pieces" * tile.is_parallel,
        function=linear_kernel,
        signature={
            "x": x,
            **dict.fromkeys(("sums_x", "scales_x"), "*fp32" if is_int8 else x),
            "codes": codes,
            "scales": f"*{name}",
            "zeros": codes if is_dense else "*i8",
            **dict.fromkeys(("bias", "pieces"), "*fp32"),
            **dict.fromkeys(("residual", "y"), f"*{name}"),
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
            "HAS_ZEROS": not is_dense,
            "HAS_BIAS": True,
            "HAS_RESIDUAL": not tile.is_parallel,
            "SPLITS": tile.splits,
        },
        aligned=frozenset({"N", "K"}),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        options=_HIP_OPTIONS if chip.startswith("gfx") else {},
    )
