"""Products of dense and quantised weights against their reference, interpreted, and their bits.

The interpreter multiplies with NumPy, which sums in its own order: bits are compared at one tile size, and
across sizes with whole numbers, whose sums are exact. That tiles of all sizes multiply alike on a device is
in the table of `linear_triton.json` and in `test_linear_instructions.py`.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.unit.kernels import ptx_numbers
from worker.kernels import linear_tuning, paged_attention_tuning
from worker.kernels.aot import CHIPS
from worker.kernels.group_quantize_torch import group_quantize
from worker.kernels.linear_kernels_triton import NIBBLES_BF16, NIBBLES_FP16
from worker.kernels.linear_triton import linear, room_for_pieces
from worker.kernels.linear_tuning import Tile
from worker.kernels.packed_matrix_torch import PackedMatrix, packed_linear, packed_linear_int8

TILE = Tile(
    block_n=32, block_m=16, block_k=128, splits=2, is_parallel=False, num_warps=4, num_stages=2
)  # fmt: skip
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
FORMATS = [(16, 0), (8, 32), (8, 64), (8, 128), (4, 32), (4, 64), (4, 128)]


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def matrix(
    rows: int, columns: int, bits: int, group: int, *, has_zeros: bool, dtype: torch.dtype
) -> PackedMatrix:
    if bits == 16:
        return PackedMatrix(noise(rows, columns, dtype=dtype, seed=1) / columns**0.5, 16)
    generator = torch.Generator().manual_seed(1)
    low, high = (0, 16) if bits == 4 else (-128, 128)

    def integers(*shape: int, top: int = high, dtype: torch.dtype = torch.int8) -> Tensor:
        return torch.randint(low, top, shape, generator=generator).to(dtype)

    codes = integers(rows, columns)
    if bits == 4:
        codes = integers(rows, columns // 2, top=256, dtype=torch.uint8)
    scales = ((torch.rand(rows, columns // group, generator=generator) + 0.5) / high / columns**0.5).to(dtype)
    return PackedMatrix(codes, bits, group, scales, integers(rows, columns // group) if has_zeros else None)


def quantised(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    codes = torch.empty(x.shape, dtype=torch.int8)
    scales, sums = torch.empty(len(x), x.shape[1] // 32), torch.empty(len(x), x.shape[1] // 32)
    group_quantize(x, codes, scales, sums)
    return codes, scales, sums


def multiply(x: Tensor | tuple[Tensor, ...], weight: PackedMatrix, tile: Tile, **epilogue: Tensor) -> Tensor:
    rows = len(x) if isinstance(x, Tensor) else len(x[0])
    dtype = x.dtype if isinstance(x, Tensor) else torch.float32
    out = torch.full((rows, weight.out_features), torch.nan).to(dtype)
    pieces = torch.full((tile.splits * out.numel(),), torch.nan)
    linear(x, weight, out, tile=tile, pieces=pieces, **epilogue)
    return out


def seldom(values: Sequence[object], quick: object) -> list[object]:
    """Return parameters of which all but one are for the slow pass."""
    return [pytest.param(value, marks=[pytest.mark.slow] * (value != quick)) for value in values]


@pytest.mark.parametrize(
    ("bits", "group", "dtype"),
    [
        # In the quick pass every format with one type, every type with some formats.
        pytest.param(*pair, dtype, marks=[pytest.mark.slow] * (place % 3 != index))
        for place, pair in enumerate(FORMATS)
        for index, dtype in enumerate(DTYPES)
    ],
)
def test_a_product_equals_its_reference(dtype: torch.dtype, bits: int, group: int) -> None:
    for has_zeros in (False, True) if group else (False,):
        weight = matrix(40, 384, bits, group, has_zeros=has_zeros, dtype=dtype)
        x = noise(5, 384, dtype=dtype)
        expected = torch.empty(5, 40, dtype=dtype)
        packed_linear(x, weight, expected)
        ours = multiply(x, weight, TILE)
        assert ours.dtype is dtype
        torch.testing.assert_close(
            ours.float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


@pytest.mark.parametrize("group", seldom([32, 64, 128], 64))
def test_a_product_of_int8_rows_equals_its_reference(group: int) -> None:
    for has_zeros in (False, True):
        weight = matrix(40, 384, 8, group, has_zeros=has_zeros, dtype=torch.bfloat16)
        x = quantised(noise(5, 384))
        expected = torch.empty(5, 40)
        packed_linear_int8(x, weight, expected)
        ours = multiply(x, weight, replace(TILE, block_k=32))
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"),
    [(0, 16, 64), (1, 1, 48), (17, 33, 100), pytest.param(3, 70, 640, marks=pytest.mark.slow)],
)
def test_odd_shapes_are_covered(rows: int, outputs: int, inputs: int) -> None:
    weight = matrix(outputs, inputs, 16, 0, has_zeros=False, dtype=torch.float32)
    x = noise(rows, inputs)
    for is_parallel in (False, True):
        ours = multiply(x, weight, replace(TILE, block_k=64, splits=4, is_parallel=is_parallel))
        torch.testing.assert_close(ours, x @ weight.codes.t(), rtol=1e-5, atol=1e-5)


def guarded(tensor: Tensor) -> Tensor:
    """Return the same between two stretches of what must not be read: NaN, or the largest code."""
    poison = torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
    memory = torch.full((tensor.numel() + 1024,), poison).to(tensor.dtype)
    memory[512:-512] = tensor.flatten()
    return memory[512:-512].view(tensor.shape)


@pytest.mark.parametrize("has_zeros", seldom([False, True], True))
@pytest.mark.parametrize(
    ("bits", "group"),
    [
        pytest.param(*form, marks=[pytest.mark.slow] * (form != (4, 32)))
        for form in (*FORMATS[1:], (88, 32), (88, 64), (88, 128))
    ],
)
def test_odd_shapes_of_codes_are_covered(bits: int, group: int, has_zeros: bool) -> None:
    """Groups end inside a step of the sum, rows inside a tile, and a piece may have no columns at all.

    Around every operand lies what would show if it were read.
    """
    is_int8 = bits == 88
    columns = (3 if group == 128 else 5) * group
    weight = matrix(33, columns, 8 if is_int8 else bits, group, has_zeros=has_zeros, dtype=torch.float32)
    parts = [None if part is None else guarded(part) for part in (weight.codes, weight.scales, weight.zeros)]
    poisoned = replace(weight, codes=parts[0], scales=parts[1], zeros=parts[2])
    x = quantised(noise(17, columns)) if is_int8 else (noise(17, columns),)
    expected = torch.empty(17, 33)
    if is_int8:
        packed_linear_int8(x, weight, expected)
    else:
        packed_linear(x[0], weight, expected)
    taken = tuple(map(guarded, x)) if is_int8 else guarded(x[0])
    block_k = 32 if is_int8 else max(64, min(2 * group, 128))
    for is_parallel in (False, True):
        tile = replace(TILE, block_k=block_k, splits=4, is_parallel=is_parallel)
        out = guarded(torch.full((17, 33), torch.nan))
        linear(taken, poisoned, out, tile=tile, pieces=guarded(torch.full((4 * out.numel(),), torch.nan)))
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        around = torch.as_strided(out, (512,), (1,), 0), torch.as_strided(out, (512,), (1,), 512 + 17 * 33)
        assert all(part.isnan().all() for part in around), "nothing is written beside the result"


@pytest.mark.parametrize("dtype", seldom(DTYPES, torch.bfloat16))
def test_a_bias_is_added_before_rounding(dtype: torch.dtype) -> None:
    weight = matrix(40, 128, 4, 64, has_zeros=True, dtype=dtype)
    x, bias = noise(5, 128, dtype=dtype), noise(40, seed=2)
    expected = torch.empty(5, 40, dtype=dtype)
    packed_linear(x, weight, expected, bias=bias)
    ours = [
        multiply(x, weight, replace(TILE, is_parallel=is_parallel), bias=bias)
        for is_parallel in (False, True)
    ]
    torch.testing.assert_close(
        ours[0].float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    assert torch.equal(*ours), "pieces apart and in one program"


@pytest.mark.failure("B094")
@pytest.mark.parametrize(
    ("bits", "group"),
    [
        (16, 0),
        (88, 64),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((4, 128), (8, 64), (4, 32))),
    ],
)
def test_a_row_is_multiplied_alike_alone_and_in_any_batch(bits: int, group: int) -> None:
    """B094: whatever the other rows hold (NaN too), wherever it stands, pieces apart or in one program."""
    is_int8 = bits == 88
    weight = matrix(40, 256, 8 if is_int8 else bits, group, has_zeros=group > 0, dtype=torch.float32)
    x = noise(21, 256)
    poisoned = torch.full_like(x, torch.nan)
    tile = replace(TILE, block_k=32) if is_int8 else TILE

    def run(rows: Tensor, is_parallel: bool) -> Tensor:
        taken = quantised(rows) if is_int8 else rows
        return multiply(taken, weight, replace(tile, is_parallel=is_parallel))

    together = run(x, False)
    assert torch.equal(together, run(x, True)), "pieces are added in one order"
    for index in (0, 20):
        poisoned[3] = x[index]
        for other in (run(x[index : index + 1], True)[0], run(poisoned, False)[3]):
            assert torch.equal(other, together[index])


@pytest.mark.failure("B094")
@pytest.mark.parametrize("kind", linear_tuning.kinds("sm_90"))
def test_every_step_of_a_ladder_gives_one_result(kind: str) -> None:
    """B094: sums of small whole numbers are exact, so any step that drops or doubles a column shows."""
    name, _, group = kind.partition("-g")
    bits = int(name[1]) if group else 16
    weight = matrix(80, 128, bits, int(group or 0), has_zeros=True, dtype=torch.float32)
    if weight.scales is None:
        weight = PackedMatrix(weight.codes.mul(64).round(), 16)
    else:
        weight = replace(weight, scales=torch.ones_like(weight.scales))
    x = noise(3, 128).mul(4).round()
    results = []
    for tile in linear_tuning.ladder("sm_90", kind):
        taken = (x.to(torch.int8), torch.ones(3, 4), x.unflatten(1, (4, 32)).sum(-1)) if name == "w8a8" else x
        results.append(multiply(taken, weight, tile))
    expected = torch.empty(3, 80)
    packed_linear(x, weight, expected)
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize(("kind", "asm", "dtype"), [
    ("bf16", NIBBLES_BF16, torch.bfloat16), ("f16", NIBBLES_FP16, torch.float16)
])  # fmt: skip
def test_the_instructions_for_four_bit_codes_give_the_contracts_numbers(
    kind: str, asm: object, dtype: torch.dtype
) -> None:
    """For every code and zero point: scale * (code - zero), rounded once."""
    base = {"bf16": 128, "f16": 1024}[kind]
    code, zero = torch.arange(16).repeat(16), torch.arange(16).repeat_interleave(16)
    scale = (torch.rand(256, generator=torch.Generator().manual_seed(0)) * 0.1).to(dtype)
    expected = ((code - zero).float() * scale.float()).to(dtype)
    for place in range(0, 256, 4):
        lanes = [(place + i) % 256 for i in range(4)]
        word = sum((int(code[lane]) | int(15 - code[lane]) << 4) << 8 * i for i, lane in enumerate(lanes))
        # The four lanes share their zero point; scales differ.
        offset = ptx_numbers.to_bits(-base - float(zero[place]), kind) * 0x10001
        scales = [ptx_numbers.to_bits(float(scale[lane]), kind) for lane in lanes]
        pairs = [scales[0] | scales[1] << 16, scales[2] | scales[3] << 16]
        words = ptx_numbers.run(getattr(asm, "value", asm), 4, [word, *pairs, offset, offset])
        for i, lane in enumerate(lanes):
            low = ptx_numbers.to_float(words[i // 2] >> 16 * (i % 2) & 0xFFFF, kind)
            high = ptx_numbers.to_float(words[2 + i // 2] >> 16 * (i % 2) & 0xFFFF, kind)
            assert low == float(expected[lane])
            mirrored = torch.tensor(float(15 - code[lane] - zero[lane])) * scale[lane].float()
            assert high == float(mirrored.to(dtype))


def test_how_k_is_cut_follows_from_the_shape_alone() -> None:
    for chip in CHIPS:
        for kind in linear_tuning.kinds(chip):
            tiles = [
                linear_tuning.tile(chip, kind, out_features=4096, in_features=4096, num_rows=rows)
                for rows in (1, 16, 17, 64, 65, 5000)
            ]
            assert len({(tile.splits, tile.block_k) for tile in tiles}) == 1, (chip, kind)


def test_a_chip_that_was_never_measured_says_so() -> None:
    for tuning in (linear_tuning, paged_attention_tuning):
        measured = {chip: part["measured"] for chip, part in json.loads(tuning.TABLE.read_text()).items()}
        assert {chip: tuning.label(chip) for chip in CHIPS} == {
            chip: label or "untuned" for chip, label in measured.items()
        }
    assert "untuned" in map(linear_tuning.label, CHIPS), "AMD's and Blackwell's chips were never at hand"
    assert len({linear_tuning.numerics(chip) for chip in CHIPS}) == len(CHIPS)


def test_room_is_asked_for_only_where_pieces_are_apart() -> None:
    weight = matrix(64, 2048, 16, 0, has_zeros=False, dtype=torch.float32)
    few, many = noise(3, 2048), noise(100, 2048)
    assert room_for_pieces(weight, few) % (3 * 64) == 0
    assert room_for_pieces(weight, few) > 0
    assert room_for_pieces(weight, many) == 0
    out = torch.empty(3, 64)
    with pytest.raises(AssertionError, match="pieces need room"):
        linear(few, weight, out, pieces=torch.empty(10))
    linear(few, weight, out, pieces=torch.empty(room_for_pieces(weight, few)))
    torch.testing.assert_close(out, few @ weight.codes.t(), rtol=1e-5, atol=1e-4)
