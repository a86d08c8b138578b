"""Products with packed weights, on every instruction set, against float64."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.unit.executors.linear_probe import (
    Codes,
    Float32,
    Float64,
    Refused,
    Run,
    ask,
    int8_of,
    make_codes,
    make_floats,
    make_x,
)
from worker.executors.native.library import Compute, WeightKind

pytestmark = pytest.mark.timeout(1800)
"""The first test of an instruction set compiles it; of NEON, a C++ library as well."""

FLOATS = [WeightKind.F32, WeightKind.BF16, WeightKind.F16]
U4, U8 = WeightKind.U4, WeightKind.U8
GROUPS = [(U4, 32), (U4, 64), (U4, 96), (U4, 192), (U8, 16), (U8, 32), (U8, 64), (U8, 1152)]
COLS = 1152
EXACT = 3e-6
"""Of the sum of absolute products: what rounding to float32 may lose."""
HALF = 2.0**-11
"""Of a scale or an offset: what rounding to float16 may lose."""


def slack_of(kind: WeightKind, symmetric: bool) -> float:
    """An offset that the packed codes' centre moves need not be a float16."""
    return EXACT if kind is U4 or symmetric else HALF


def check(y: Float32, x: Float64, w: Float64, bias: Float32 | None = None, *, slack: float = EXACT) -> None:
    """Compare with the float64 product, to within `slack` of the sum of its absolute terms."""
    start = 0.0 if bias is None else bias.astype(np.float64)
    bound = slack * (np.abs(x) @ np.abs(w).T + np.abs(start)) + 1e-30
    assert np.all(np.abs(y - (x @ w.T + start)) <= bound)


@pytest.mark.parametrize(("kind", "group"), GROUPS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_int8_products_are_exact_but_for_float_sums(
    linear_program: Sequence[str], kind: WeightKind, group: int, symmetric: bool
) -> None:
    weight = make_codes(kind, 70, COLS, group, symmetric=symmetric)
    x = make_x(13, COLS)
    (y,) = ask(linear_program, weight, [Run(x=x)]).products
    check(y, int8_of(x), weight.to_float64(), slack=slack_of(kind, symmetric))
    # And near the product of what was given: int8 loses under 1 % of a typical one.
    exact = x.astype(np.float64) @ weight.to_float64().T
    assert np.all(np.std(y - exact, axis=1) < 0.015 * np.std(exact, axis=1))


@pytest.mark.parametrize(("kind", "group"), [(U4, 32), (U4, 64), (U8, 16), (U8, 32)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_float32_compute_keeps_activations(
    linear_program: Sequence[str], kind: WeightKind, group: int, symmetric: bool
) -> None:
    weight = make_codes(kind, 33, 576, group, symmetric=symmetric)
    x = make_x(9, 576)
    (y,) = ask(linear_program, weight, [Run(x=x, compute=Compute.F32)]).products
    check(y, x.astype(np.float64), weight.to_float64(), slack=slack_of(kind, symmetric))


@pytest.mark.parametrize("compute", list(Compute))
@pytest.mark.parametrize("kind", FLOATS)
def test_float_weights_are_multiplied_in_float32(
    linear_program: Sequence[str], kind: WeightKind, compute: Compute
) -> None:
    weight = make_floats(kind, 37, 611)
    x = make_x(8, 611)
    answer = ask(linear_program, weight, [Run(x=x, compute=compute)])
    assert np.array_equal(answer.rows, weight.values)
    check(answer.products[0], x.astype(np.float64), weight.to_float64(), slack=3e-5)


@pytest.mark.parametrize(("kind", "group"), GROUPS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_rows_read_back_are_the_weight(
    linear_program: Sequence[str], kind: WeightKind, group: int, symmetric: bool
) -> None:
    weight = make_codes(kind, 19, COLS, group, symmetric=symmetric)
    rows = ask(linear_program, weight, []).rows
    largest = np.repeat(np.abs(weight.scales), group, 1) * (16 if kind is U4 else 256)
    slack = 1e-7 if kind is U4 or symmetric else HALF / 2
    assert np.all(np.abs(rows - weight.to_float64()) <= slack * largest)


@pytest.mark.parametrize(("kind", "levels"), [(U4, 16), (U8, 32), (U8, 64), (U8, 256)])
def test_scales_that_float16_cannot_hold_lose_a_fraction_of_a_step(
    linear_program: Sequence[str], kind: WeightKind, levels: int
) -> None:
    """Scales of Q4_K, Q5_K and Q6_K are products of a float16 and an integer."""
    weight = make_codes(kind, 64, 512, 32, levels=levels)
    error = np.abs(ask(linear_program, weight, []).rows - weight.to_float64())
    assert np.all(error <= 2 * HALF * levels * np.repeat(np.abs(weight.scales), 32, 1))


@pytest.mark.parametrize("magnitude", [1e-30, 1e-6, 1e4, 1e25])
def test_scales_of_any_magnitude_are_kept(linear_program: Sequence[str], magnitude: float) -> None:
    weight = make_codes(U8, 20, 64, 32, symmetric=True)
    weight.scales[:] *= np.float32(magnitude)
    weight.offsets[:] = -128 * weight.scales
    x = make_x(2, 64) / np.float32(magnitude**0.5)
    (y,) = ask(linear_program, weight, [Run(x=x)]).products
    check(y, int8_of(x), weight.to_float64(), slack=HALF)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 100])
@pytest.mark.parametrize("kind", [*FLOATS, U4, U8])
def test_any_number_of_output_rows(linear_program: Sequence[str], kind: WeightKind, rows: int) -> None:
    x = make_x(3, 64)
    weight = make_floats(kind, rows, 64) if kind in FLOATS else make_codes(kind, rows, 64, 32, symmetric=True)
    bias = np.random.default_rng(rows).normal(0, 1, rows).astype(np.float32)
    wide, tight = ask(linear_program, weight, [Run(x=x, stride=rows + 5), Run(x=x)], bias).products
    # Nothing is written behind a row.
    assert np.isnan(wide[:, rows:]).all()
    assert np.array_equal(wide[:, :rows], tight)
    read = x.astype(np.float64) if kind in FLOATS else int8_of(x)
    check(tight, read, weight.to_float64(), bias, slack=1e-5)


@pytest.mark.parametrize("cols", [16, 48, 80])
def test_columns_that_are_no_whole_groups_of_activations(linear_program: Sequence[str], cols: int) -> None:
    weight = make_codes(U8, 40, cols, 16, symmetric=True)
    x = make_x(5, cols)
    (y,) = ask(linear_program, weight, [Run(x=x)]).products
    check(y, int8_of(x), weight.to_float64())


@pytest.mark.failure("B121")
@pytest.mark.parametrize("compute", list(Compute))
def test_zeros_give_zeros(linear_program: Sequence[str], compute: Compute) -> None:
    weight = make_codes(U4, 20, 64, 32, symmetric=True)
    weight.scales[5:9] = weight.offsets[5:9] = 0
    x = make_x(4, 64)
    x[1] = 0
    x[2, :32] = 1e-42
    (y,) = ask(linear_program, weight, [Run(x=x, compute=compute)]).products
    assert not y[1].any()
    assert not y[:, 5:9].any()
    assert np.isfinite(y).all()


@pytest.mark.parametrize("kind", [U4, U8])
@pytest.mark.parametrize("code", [0, 1, 127, 128, 129, 255])
def test_the_largest_products_do_not_saturate(
    linear_program: Sequence[str], kind: WeightKind, code: int
) -> None:
    weight = make_codes(kind, 16, 64, 32, symmetric=True)
    weight.values[:] = min(code, 15) if kind is U4 else code
    signs = np.random.default_rng(code).choice([-1, 1], (6, 64)).astype(np.float32)
    signs[0], signs[1] = 1, -1
    (y,) = ask(linear_program, weight, [Run(x=signs)]).products
    check(y, int8_of(signs), weight.to_float64())


def test_offsets_are_stored_only_where_they_are_needed(linear_program: Sequence[str]) -> None:
    def used(weight: Codes) -> int:
        return ask(linear_program, weight, []).used_bytes

    tiles = 64 // 16
    fixed = 64 + 64 * 4
    for kind, bits in ((U4, 4), (U8, 8)):
        codes = 64 * COLS * bits // 8
        scales = tiles * COLS // 32 * 32
        assert used(make_codes(kind, 64, COLS, 32, symmetric=True)) == fixed + codes + scales
        assert used(make_codes(kind, 64, COLS, 32)) == fixed + codes + 2 * scales
    q6_k = make_codes(U8, 64, COLS, 16, levels=64)
    q6_k.offsets[:] = -32 * q6_k.scales
    assert used(q6_k) == fixed + 64 * COLS + tiles * COLS // 16 * 32


@pytest.mark.failure("B118")
@pytest.mark.parametrize(
    ("kind", "cols", "group", "message"),
    [
        (U4, 100, 64, "100 columns are not whole groups of 64"),
        (U8, 130, 32, "130 columns are not whole groups of 32"),
        (U4, 32, 16, "group 16: must be a multiple of 32, or 16 for 8-bit codes"),
        (U8, 40, 40, "group 40: must be a multiple of 32"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    linear_program: Sequence[str], kind: WeightKind, cols: int, group: int, message: str
) -> None:
    scales = np.ones((3, cols // group), np.float32)
    weight = Codes(kind, group, np.ones((3, cols), np.uint8), scales, scales)
    with pytest.raises(Refused, match=message):
        ask(linear_program, weight, [])


def spoil_scale(weight: Codes) -> None:
    weight.scales[3, 1] = np.nan


def spoil_offset(weight: Codes) -> None:
    weight.offsets[2, 0] = np.inf


def spoil_code(weight: Codes) -> None:
    weight.values[4, 33] = 16


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_scale, "the scale of row 3, group 1 is not finite"),
        (spoil_offset, "the offset of row 2, group 0 is not finite"),
        (spoil_code, "the code of row 4, column 33 exceeds 15"),
    ],
)
def test_damaged_weights_are_refused(
    linear_program: Sequence[str], spoil: Callable[[Codes], None], message: str
) -> None:
    weight = make_codes(U4, 6, 64, 32)
    spoil(weight)
    with pytest.raises(Refused, match=message):
        ask(linear_program, weight, [])
