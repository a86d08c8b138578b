"""A row of a product depends on that row of activations alone, bit for bit, on this machine and on NEON."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.unit.executors.linear_probe import (
    Run,
    Weight,
    ask,
    linear_command,
    make_codes,
    make_floats,
    make_x,
)
from tests.unit.executors.probe_targets import NEON, OURS
from worker.executors.native.library import Compute, WeightKind

pytestmark = pytest.mark.timeout(1800)
"""The first test of an instruction set compiles it; of NEON, a C++ library as well."""

U4, U8 = WeightKind.U4, WeightKind.U8
COLS = 1152
WEIGHTS: dict[str, Callable[[], Weight]] = {
    "u4": lambda: make_codes(U4, 50, COLS, 32),
    "u4_centred": lambda: make_codes(U4, 50, COLS, 64, symmetric=True),
    "u8": lambda: make_codes(U8, 50, COLS, 32),
    "u8_centred": lambda: make_codes(U8, 50, COLS, 32, symmetric=True),
    "u8_of_16": lambda: make_codes(U8, 50, COLS, 16),
    "f32": lambda: make_floats(WeightKind.F32, 50, 600),
    "bf16": lambda: make_floats(WeightKind.BF16, 50, 600),
    "f16": lambda: make_floats(WeightKind.F16, 50, 600),
}


@pytest.fixture(scope="module", params=[*OURS, NEON])
def linear_program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """Of the emulated sets one: all three took 266 s, and VNNI adds up the same whole numbers as AVX2."""
    return linear_command(tmp_path_factory.getbasetemp(), request.param)


@pytest.mark.parametrize("compute", list(Compute))
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_row_does_not_depend_on_the_others(
    linear_program: Sequence[str], name: str, compute: Compute
) -> None:
    """Every number of rows from 0 to 40 and some that are cut into several blocks; one thread and more."""
    weight = WEIGHTS[name]()
    x = make_x(301, weight.values.shape[1])
    counts = [*range(41), 143, 144, 145, 157, 288, 301]
    starts = [*range(1, 14), 99, 180, 300]
    runs = [Run(x=x[:num], compute=compute, num_threads=1 + 2 * (num % 2)) for num in counts]
    runs += [Run(x=x[start:], compute=compute, num_threads=2) for start in starts]
    products = ask(linear_program, weight, runs).products
    whole = products[counts.index(301)]
    for num, y in zip(counts, products, strict=False):
        assert np.array_equal(y, whole[:num]), num
    for start, y in zip(starts, products[len(counts) :], strict=True):
        assert np.array_equal(y, whole[start:]), start


@pytest.mark.parametrize("compute", list(Compute))
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_bad_activations_stay_in_their_row(
    linear_program: Sequence[str], name: str, compute: Compute, bad: float
) -> None:
    weight = WEIGHTS[name]()
    x = make_x(23, weight.values.shape[1])
    spoilt = x.copy()
    spoilt[7, 55] = bad
    runs = [Run(x=x, compute=compute), Run(x=spoilt, compute=compute)]
    clean, y = ask(linear_program, weight, runs).products
    others = np.arange(23) != 7
    assert np.array_equal(y[others], clean[others])
    if not np.isfinite(bad):
        assert not np.isfinite(y[7]).any()
