"""Tile sizes are used only where this machine gives the same bits in all of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder
from worker.executors.torch_executor import load_torch_executor
from worker.kernels.linear import split_rows
from worker.kernels.linear_torch import TILES, Matrix, prove_tiles


class ShakyMatrix(Matrix):
    """A matrix library whose product differs in the last bit for tiles of some sizes."""

    def __init__(self, weight: torch.Tensor, shaky_sizes: set[int], *, by_row: bool = False) -> None:
        super().__init__(weight)
        exact = self._multiply

        def multiply(x: torch.Tensor) -> torch.Tensor:
            y = exact(x).clone()
            if len(x) in shaky_sizes:
                rows = y[len(x) // 2 :] if by_row else y
                rows.copy_(torch.nextafter(rows, torch.tensor(9e9)))
            return y

        self._multiply = multiply


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 31, 64, 65, 100, 1000])
def test_tiles_cover_all_rows_and_waste_less_than_one_tile(num_rows: int) -> None:
    cover = split_rows(num_rows, (1, 4, 16, 64))
    assert num_rows <= sum(cover) < num_rows + 48
    assert all(size == 64 for size in cover[:-1])


def test_sizes_with_other_bits_are_not_used() -> None:
    matrix = ShakyMatrix(torch.randn(40, 24), {1, 24})
    assert set(TILES) - set(prove_tiles([Matrix(torch.randn(8, 24)), matrix])[0]) == {1, 24}


def test_single_rows_are_left_where_bits_depend_on_the_place_in_the_largest_tile() -> None:
    matrix = ShakyMatrix(torch.randn(40, 24), {TILES[-1]}, by_row=True)
    assert prove_tiles([matrix])[0] == (1,)


def test_other_bits_are_other_numerics() -> None:
    weight = torch.randn(40, 24)
    assert prove_tiles([Matrix(weight)])[1] != prove_tiles([ShakyMatrix(weight, set(TILES))])[1]
    assert prove_tiles([Matrix(weight)])[1] == prove_tiles([Matrix(weight)])[1]


def test_without_packed_matrices_bits_are_still_the_same_alone_and_batched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    folder = save_folder(make_model("llama"), tmp_path)
    executor = load_torch_executor(folder, model_name="tiny", num_threads=1)
    executor.allocate(20)
    ids = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
    alone = logits_of(executor, [Part(ids, 0, [0, 1, 2])])
    for length in (1, 2, 3, 7):
        neighbours = [Part([9] * length, 0, [10]), Part([8] * 5, 0, [11])]
        chunks = [
            logits_of(
                executor, [neighbours[0], Part(ids[start : start + 8], start, [5, 7, 6]), neighbours[1]]
            )
            for start in range(0, 40, 8)
        ]
        together = np.concatenate([logits[length : length + 8] for logits in chunks])
        assert np.array_equal(together, alone)
