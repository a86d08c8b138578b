"""Products with packed weights, on every instruction set of this machine, against float64."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.unit.executors.linear_probe import Float32, Float64, Refused, Run, Weight, ask, compile_probe, quantised
from worker.executors.native.instruction_sets import InstructionSet, this_cpu
from worker.executors.native.library import Compute, WeightKind

pytestmark = pytest.mark.timeout(600)
"""The first test of an instruction set compiles it."""

FLOATS = [WeightKind.F32, WeightKind.BF16, WeightKind.F16]
U4, U8 = WeightKind.U4, WeightKind.U8
CENTRED = {U4: 8, U8: 128}
GROUPS = [(U4, 32), (U4, 64), (U4, 128), (U4, 96), (U8, 16), (U8, 32), (U8, 64), (U8, 1152)]
EXACT = 3e-6
"""Of the sum of absolute products: what rounding to float32 may lose."""
HALF = 2.0**-11
"""Of a scale or an offset: what rounding to float16 may lose."""


@pytest.fixture(scope="module", params=this_cpu().supported(), ids=lambda entry: entry.name)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    entry: InstructionSet = request.param
    return [str(compile_probe(tmp_path_factory.mktemp(entry.name), entry))]


def half(values: Float64) -> Float32:
    return values.astype(np.float16).astype(np.float32)


def quantised_weight(
    kind: WeightKind, rows: int, cols: int, group: int, *, symmetric: bool = False, exact: bool = True
) -> Weight:
    """Return random codes; scales are float16 values (as in Q4_1) unless not exact (as in Q4_K)."""
    rng = np.random.default_rng((kind, rows, cols, group, symmetric))
    levels = 16 if kind is U4 else 256
    codes = rng.integers(0, levels, (rows, cols)).astype(np.uint8)
    shape = (rows, cols // group)
    scales = rng.uniform(0.001, 0.02, shape) * rng.choice([-1, 1], shape)
    offsets = -scales * rng.uniform(0, levels, shape)
    if exact:
        scales, offsets = half(scales), half(offsets)
    if symmetric:
        offsets = -CENTRED[kind] * scales
    return Weight(
        kind=kind,
        shape=(rows, cols),
        group=group,
        codes=codes,
        scales=scales.astype(np.float32),
        offsets=offsets.astype(np.float32),
    )


def float_weight(kind: WeightKind, rows: int, cols: int) -> Weight:
    values = np.random.default_rng((kind, rows, cols)).normal(0, 0.05, (rows, cols)).astype(np.float32)
    if kind is WeightKind.BF16:
        values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    elif kind is WeightKind.F16:
        values = half(values.astype(np.float64))
    return Weight(kind=kind, shape=(rows, cols), values=values)


def activations(num_rows: int, cols: int, seed: int = 0) -> Float32:
    """Return rows of several magnitudes, each with an outlier."""
    rng = np.random.default_rng((seed, num_rows, cols))
    x = rng.normal(0, 1, (num_rows, cols)) * 10.0 ** rng.uniform(-2, 2, (num_rows, 1))
    x[:, rng.integers(cols)] *= 20
    return x.astype(np.float32)


def check(y: Float32, x: Float64, w: Float64, bias: Float32 | None = None, *, slack: float = EXACT) -> None:
    """Compare with the float64 product, to within `slack` of the sum of its absolute terms."""
    start = 0.0 if bias is None else bias.astype(np.float64)
    bound = slack * (np.abs(x) @ np.abs(w).T + np.abs(start)) + 1e-30
    assert np.all(np.abs(y - (x @ w.T + start)) <= bound)


@pytest.mark.parametrize(("kind", "group"), GROUPS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_int8_products_are_exact_but_for_float_sums(
    program: Sequence[str], kind: WeightKind, group: int, symmetric: bool
) -> None:
    weight = quantised_weight(kind, 70, 1152 if group != 128 else 1280, group, symmetric=symmetric)
    x = activations(13, weight.shape[1])
    answer = ask(program, weight, [Run(x=x)])
    # A recentred offset is a float16 that need not be exact.
    slack = EXACT if kind is U4 or symmetric else HALF
    check(answer.products[0], quantised(x), weight.to_float64(), slack=slack)


@pytest.mark.parametrize(("kind", "group"), [(U4, 32), (U4, 64), (U8, 16), (U8, 32)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_float32_compute_keeps_activations(
    program: Sequence[str], kind: WeightKind, group: int, symmetric: bool
) -> None:
    weight = quantised_weight(kind, 33, 576, group, symmetric=symmetric)
    x = activations(9, 576)
    answer = ask(program, weight, [Run(x=x, compute=Compute.F32)])
    slack = EXACT if kind is U4 or symmetric else HALF
    check(answer.products[0], x.astype(np.float64), weight.to_float64(), slack=slack)


@pytest.mark.parametrize("compute", list(Compute))
@pytest.mark.parametrize("kind", FLOATS)
def test_float_weights_are_multiplied_in_float32(program: Sequence[str], kind: WeightKind, compute: Compute) -> None:
    weight = float_weight(kind, 37, 611)
    x = activations(8, 611)
    answer = ask(program, weight, [Run(x=x, compute=compute)])
    assert np.array_equal(answer.rows, weight.to_float64())
    check(answer.products[0], x.astype(np.float64), weight.to_float64(), slack=3e-5)


@pytest.mark.parametrize(("kind", "group"), GROUPS)
def test_rows_read_back_are_the_weight(program: Sequence[str], kind: WeightKind, group: int) -> None:
    for symmetric in (False, True):
        weight = quantised_weight(kind, 19, 1152 if group != 128 else 256, group, symmetric=symmetric)
        rows = ask(program, weight, []).rows
        assert weight.scales is not None
        size = np.repeat(np.abs(weight.scales), group, 1) * (16 if kind is U4 else 256)
        slack = 1e-7 if kind is U4 or symmetric else HALF / 2
        assert np.all(np.abs(rows - weight.to_float64()) <= slack * size)


@pytest.mark.parametrize(("kind", "levels"), [(U4, 16), (U8, 32), (U8, 64), (U8, 256)])
def test_scales_that_float16_cannot_hold_lose_a_fraction_of_a_step(
    program: Sequence[str], kind: WeightKind, levels: int
) -> None:
    """Scales of Q4_K, Q5_K and Q6_K are products of a float16 and an integer."""
    weight = quantised_weight(kind, 64, 512, 32, exact=False)
    assert weight.codes is not None and weight.scales is not None
    weight.codes[:] %= levels
    assert weight.offsets is not None
    weight.offsets[:] = -weight.scales * levels * 0.4
    error = np.abs(ask(program, weight, []).rows - weight.to_float64())
    assert np.all(error <= 1.4 * HALF * levels * np.repeat(np.abs(weight.scales), 32, 1))


@pytest.mark.parametrize("magnitude", [1e-30, 1e-6, 1e4, 1e25])
def test_scales_of_any_magnitude_are_kept(program: Sequence[str], magnitude: float) -> None:
    weight = quantised_weight(U8, 20, 64, 32, symmetric=True)
    assert weight.scales is not None and weight.offsets is not None
    weight.scales[:] *= np.float32(magnitude)
    weight.offsets[:] = -128 * weight.scales
    x = activations(2, 64) / np.float32(magnitude**0.5)
    answer = ask(program, weight, [Run(x=x)])
    check(answer.products[0], quantised(x), weight.to_float64(), slack=HALF)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 100])
@pytest.mark.parametrize("kind", [*FLOATS, U4, U8])
def test_any_number_of_output_rows(program: Sequence[str], kind: WeightKind, rows: int) -> None:
    weight = float_weight(kind, rows, 64) if kind in FLOATS else quantised_weight(kind, rows, 64, 32, symmetric=True)
    x = activations(3, 64)
    bias = np.random.default_rng(rows).normal(0, 1, rows).astype(np.float32)
    runs = [Run(x=x, stride=rows + 5), Run(x=x)]
    wide, tight = ask(program, weight, runs, bias).products
    # Nothing is written behind a row.
    assert np.isnan(wide[:, rows:]).all()
    assert np.array_equal(wide[:, :rows], tight)
    check(tight, quantised(x) if kind not in FLOATS else x.astype(np.float64), weight.to_float64(), bias, slack=1e-5)


@pytest.mark.parametrize("cols", [16, 48, 80])
def test_columns_that_are_no_whole_activation_groups(program: Sequence[str], cols: int) -> None:
    weight = quantised_weight(U8, 40, cols, 16, symmetric=True)
    x = activations(5, cols)
    (y,) = ask(program, weight, [Run(x=x)]).products
    check(y, quantised(x), weight.to_float64())


WEIGHTS: dict[str, Callable[[], Weight]] = {
    "u4": lambda: quantised_weight(U4, 50, 1152, 32),
    "u4_centred": lambda: quantised_weight(U4, 50, 1152, 64, symmetric=True),
    "u8": lambda: quantised_weight(U8, 50, 1152, 32),
    "u8_centred": lambda: quantised_weight(U8, 50, 1152, 32, symmetric=True),
    "u8_of_16": lambda: quantised_weight(U8, 50, 1152, 16),
    **{kind.name.lower(): lambda kind=kind: float_weight(kind, 50, 600) for kind in FLOATS},
}


@pytest.mark.parametrize("compute", list(Compute))
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_row_does_not_depend_on_the_others(program: Sequence[str], name: str, compute: Compute) -> None:
    """Every number of rows up to 40 and some that are cut into several blocks; one thread and three."""
    weight = WEIGHTS[name]()
    x = activations(301, weight.shape[1])
    counts = [*range(1, 41), 119, 120, 121, 133, 240, 301]
    runs = [Run(x=x[:num], compute=compute, num_threads=1 + 2 * (num % 2)) for num in counts]
    starts = [*range(1, 14), 99, 180, 300]
    runs += [Run(x=x[start:], compute=compute, num_threads=2) for start in starts]
    products = ask(program, weight, runs).products
    whole = products[counts.index(301)]
    for num, y in zip(counts, products, strict=False):
        assert np.array_equal(y, whole[:num]), num
    for start, y in zip(starts, products[len(counts) :], strict=True):
        assert np.array_equal(y, whole[start:]), start


@pytest.mark.parametrize("compute", list(Compute))
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_bad_activations_stay_in_their_row(
    program: Sequence[str], name: str, compute: Compute, bad: float
) -> None:
    weight = WEIGHTS[name]()
    x = activations(23, weight.shape[1])
    spoilt = x.copy()
    spoilt[7, 55] = bad
    clean, y = ask(program, weight, [Run(x=x, compute=compute), Run(x=spoilt, compute=compute)]).products
    others = np.arange(23) != 7
    assert np.array_equal(y[others], clean[others])
    if not np.isfinite(bad):
        assert not np.isfinite(y[7]).any()


@pytest.mark.failure("B121")
@pytest.mark.parametrize("compute", list(Compute))
def test_zeros_give_zeros(program: Sequence[str], compute: Compute) -> None:
    weight = quantised_weight(U4, 20, 64, 32, symmetric=True)
    assert weight.scales is not None and weight.offsets is not None
    weight.scales[5:9] = weight.offsets[5:9] = 0
    x = activations(4, 64)
    x[1] = 0
    x[2, :32] = 1e-42
    (y,) = ask(program, weight, [Run(x=x, compute=compute)]).products
    assert not y[1].any()
    assert not y[:, 5:9].any()
    assert np.isfinite(y).all()


@pytest.mark.parametrize("code", [0, 1, 127, 128, 129, 255])
def test_the_largest_products_do_not_saturate(program: Sequence[str], code: int) -> None:
    for kind in (U4, U8):
        weight = quantised_weight(kind, 16, 64, 32, symmetric=True)
        assert weight.codes is not None
        weight.codes[:] = min(code, 15) if kind is U4 else code
        signs = np.random.default_rng(code).choice([-1, 1], (6, 64)).astype(np.float32)
        signs[0], signs[1] = 1, -1
        (y,) = ask(program, weight, [Run(x=signs)]).products
        check(y, quantised(signs), weight.to_float64())


def test_offsets_are_stored_only_where_they_are_needed(program: Sequence[str]) -> None:
    def used(weight: Weight) -> int:
        return ask(program, weight, []).used_bytes

    tiles = 64 // 16
    fixed = 64 + 64 * 4
    for kind, bits in ((U4, 4), (U8, 8)):
        codes = 64 * 1152 * bits // 8
        scales = tiles * 1152 // 32 * 32
        assert used(quantised_weight(kind, 64, 1152, 32, symmetric=True)) == fixed + codes + scales
        assert used(quantised_weight(kind, 64, 1152, 32)) == fixed + codes + 2 * scales
    six_bits = quantised_weight(U8, 64, 1152, 16)
    assert six_bits.codes is not None and six_bits.offsets is not None and six_bits.scales is not None
    six_bits.codes[:] %= 64
    six_bits.offsets[:] = -32 * six_bits.scales
    assert used(six_bits) == fixed + 64 * 1152 + tiles * 1152 // 16 * 32


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
    program: Sequence[str], kind: WeightKind, cols: int, group: int, message: str
) -> None:
    scales = np.ones((3, max(1, cols // group)), np.float32)
    codes = np.ones((3, cols), np.uint8)
    weight = Weight(kind=kind, shape=(3, cols), group=group, codes=codes, scales=scales, offsets=scales)
    with pytest.raises(Refused, match=message):
        ask(program, weight, [])


def spoil_scale(weight: Weight) -> None:
    assert weight.scales is not None
    weight.scales[3, 1] = np.nan


def spoil_offset(weight: Weight) -> None:
    assert weight.offsets is not None
    weight.offsets[2, 0] = np.inf


def spoil_code(weight: Weight) -> None:
    assert weight.codes is not None
    weight.codes[4, 33] = 16


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_scale, "the scale of row 3, group 1 is not finite"),
        (spoil_offset, "the offset of row 2, group 0 is not finite"),
        (spoil_code, "the code of row 4, column 33 exceeds 15"),
    ],
)
def test_damaged_weights_are_refused(program: Sequence[str], spoil: Callable[[Weight], None], message: str) -> None:
    weight = quantised_weight(U4, 6, 64, 32)
    spoil(weight)
    with pytest.raises(Refused, match=message):
        ask(program, weight, [])
