"""Operations on rows, on every instruction set of this machine, against their torch references."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.native_models import INSTRUCTION_SETS, plan_executor
from worker.executors.native_executor import NativeExecutor
from worker.kernels.act_mul_torch import gelu_tanh_mul, silu_mul
from worker.kernels.rms_norm_torch import rms_norm
from worker.kernels.soft_cap_torch import soft_cap
from worker.plan.graph import Graph
from worker.plan.op import Activation, Slot

Float32 = NDArray[np.float32]

pytestmark = pytest.mark.timeout(600)
"""The first test of an instruction set compiles it."""

NUM_ROWS = 70
EPS = 1e-5


@dataclass(frozen=True)
class Operation:
    """What the plan does to x, and what the reference makes of it."""

    forward: Callable[[Graph, Slot], Slot]
    reference: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Given x and the weight."""
    scale: Callable[[Float32], Float32 | float] = lambda x: 1.0
    """By x: what an absolute difference of 1e-6 is multiplied by."""


def into(
    function: Callable[..., None], *arguments: object, halves: bool = False, **options: float
) -> torch.Tensor:
    """Call a kernel that writes into its last argument."""
    x = arguments[0]
    assert isinstance(x, torch.Tensor)
    out = torch.full((len(x), x.shape[1] // 2 if halves else x.shape[1]), torch.nan)
    function(*arguments, out, **options)
    return out


OPERATIONS = {
    "rms_norm": Operation(
        lambda g, x: g.rms_norm(x, "w", eps=EPS), lambda x, w: into(rms_norm, x, w, eps=EPS)
    ),
    "silu": Operation(
        lambda g, x: g.act_mul(x, Activation.SILU), lambda x, w: into(silu_mul, x, halves=True)
    ),
    "gelu_tanh": Operation(
        lambda g, x: g.act_mul(x, Activation.GELU_TANH),
        lambda x, w: into(gelu_tanh_mul, x, halves=True),
        # The reference adds 1 to a tanh near -1.
        lambda x: np.abs(x[:, : x.shape[1] // 2] * x[:, x.shape[1] // 2 :]),
    ),
    "add": Operation(lambda g, x: g.add(x, g.scale(x, 3.0)), lambda x, w: x + 3 * x),
    "scale": Operation(lambda g, x: g.scale(x, 0.37), lambda x, w: x * 0.37),
    "soft_cap": Operation(lambda g, x: g.soft_cap(x, 5.0), lambda x, w: into(soft_cap, x, cap=5.0)),
    "gather_rows": Operation(lambda g, x: g.gather_rows(x), lambda x, w: x),
    "embed": Operation(lambda g, x: x, lambda x, w: x),
}


def table_of(width: int) -> Float32:
    """Return rows of many magnitudes; those behind NUM_ROWS are NaN."""
    rng = np.random.default_rng(width)
    table = rng.normal(0, 1, (2 * NUM_ROWS, width)) * 10.0 ** rng.uniform(-3, 1.5, (2 * NUM_ROWS, 1))
    table[NUM_ROWS:] = np.nan
    return table.astype(np.float32)


def executor_of(
    name: str,
    width: int,
    instruction_set: str,
    cache: Path,
    num_threads: int = 1,
    table: Float32 | None = None,
) -> NativeExecutor:
    def forward(g: Graph) -> Slot:
        x = g.embed("table", vocab_size=2 * NUM_ROWS, width=width)
        return OPERATIONS[name].forward(g, x)

    weight = np.random.default_rng(1).normal(1, 0.3, width).astype(np.float32)
    arrays = {"table": table_of(width) if table is None else table, "w": weight}
    made = plan_executor(forward, arrays, cache, instruction_set=instruction_set, num_threads=num_threads)
    made.allocate(2 * NUM_ROWS // 16 + 1)
    return made


def run(executor: NativeExecutor, first: int, count: int) -> Float32:
    """Return the outputs of rows `first` to `first + count` of the table."""
    return logits_of(executor, [Part(range(first, first + count), 0, range(9))])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("width", [2, 14, 16, 34, 576])
def test_an_operation_computes_what_its_reference_does(
    name: str, width: int, instruction_set: str, tmp_path: Path
) -> None:
    executor = executor_of(name, width, instruction_set, tmp_path)
    # Poison: the memory of every slot holds NaN before the rows that are compared.
    run(executor, NUM_ROWS, NUM_ROWS)
    ours = run(executor, 0, NUM_ROWS)
    weight = torch.from_numpy(np.random.default_rng(1).normal(1, 0.3, width).astype(np.float32))
    x = table_of(width)[:NUM_ROWS]
    theirs = OPERATIONS[name].reference(torch.from_numpy(x), weight).numpy()
    assert (np.abs(ours - theirs) <= 2e-6 * np.abs(theirs) + 1e-6 * OPERATIONS[name].scale(x)).all()


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_row_has_the_same_bits_anywhere_with_any_threads_and_instruction_set(
    name: str, tmp_path: Path
) -> None:
    expected: Float32 | None = None
    for instruction_set in INSTRUCTION_SETS:
        for num_threads in (1, 2):
            executor = executor_of(name, 334, instruction_set, tmp_path, num_threads)
            together = run(executor, 0, NUM_ROWS)
            expected = together if expected is None else expected
            assert np.array_equal(together, expected)
            for row in (0, 1, 33, NUM_ROWS - 1):
                assert np.array_equal(run(executor, row, 1)[0], expected[row])
                assert np.array_equal(run(executor, row, 3)[0], expected[row]) or row == NUM_ROWS - 1
            executor.close()


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_nan_and_infinity_stay_in_their_row(name: str, instruction_set: str, tmp_path: Path) -> None:
    executor = executor_of(name, 34, instruction_set, tmp_path)
    clean = run(executor, NUM_ROWS - 4, 4)
    mixed = run(executor, NUM_ROWS - 4, 8)
    assert np.array_equal(mixed[:4], clean)
    assert np.isnan(mixed[4:]).all()


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinity_becomes_what_it_does_in_the_reference(
    name: str, bad: float, instruction_set: str, tmp_path: Path
) -> None:
    table = table_of(34)
    table[5, [0, 20, 33]] = bad
    executor = executor_of(name, 34, instruction_set, tmp_path, table=table)
    ours = run(executor, 0, 12)
    weight = torch.from_numpy(np.random.default_rng(1).normal(1, 0.3, 34).astype(np.float32))
    theirs = OPERATIONS[name].reference(torch.from_numpy(table[:12]), weight).numpy()
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    np.testing.assert_allclose(ours[5], theirs[5], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_activations_bear_the_largest_numbers(instruction_set: str, tmp_path: Path) -> None:
    extremes = np.array([[-np.inf, np.inf, -1e30, 1e30, -104.0, -88.0, 89.0, 0.0]], np.float32)
    gates = np.concatenate([extremes, np.ones_like(extremes)], axis=1)
    for activation, kernel in ((Activation.SILU, silu_mul), (Activation.GELU_TANH, gelu_tanh_mul)):

        def forward(g: Graph, activation: Activation = activation) -> Slot:
            return g.act_mul(g.embed("table", vocab_size=1, width=16), activation)

        folder = tmp_path / activation.name
        executor = plan_executor(forward, {"table": gates}, folder, instruction_set=instruction_set)
        executor.allocate(1)
        ours = logits_of(executor, [Part([0], 0, [0])])
        theirs = into(kernel, torch.from_numpy(gates), halves=True).numpy()
        np.testing.assert_allclose(ours[:, 1:], theirs[:, 1:], rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_heads_are_normalised_one_by_one(instruction_set: str, tmp_path: Path) -> None:
    q_heads, kv_heads, head_dim = 3, 1, 24
    width = (q_heads + 2 * kv_heads) * head_dim

    def forward(g: Graph) -> Slot:
        return g.qk_norm(g.embed("table", vocab_size=2 * NUM_ROWS, width=width), "q", "k", eps=EPS)

    rng = np.random.default_rng(3)
    weights = {name: rng.normal(1, 0.3, head_dim).astype(np.float32) for name in ("q", "k")}
    executor = plan_executor(
        forward,
        {"table": table_of(width), **weights},
        tmp_path,
        num_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        instruction_set=instruction_set,
    )
    executor.allocate(9)
    run(executor, NUM_ROWS, NUM_ROWS)
    ours = run(executor, 0, NUM_ROWS).reshape(NUM_ROWS, -1, head_dim)
    heads = torch.from_numpy(table_of(width)[:NUM_ROWS]).view(NUM_ROWS, -1, head_dim)
    for name, part in (("q", slice(0, 3)), ("k", slice(3, 4))):
        theirs = torch.empty(NUM_ROWS, part.stop - part.start, head_dim)
        rms_norm(heads[:, part].contiguous(), torch.from_numpy(weights[name]), theirs, eps=EPS)
        np.testing.assert_allclose(ours[:, part], theirs.numpy(), rtol=2e-6, atol=1e-6)
    assert np.array_equal(ours[:, 4:], heads[:, 4:].numpy())
