"""The GPU's layout of codes holds the numbers that the file's reader gave."""

import numpy as np
import pytest
import torch

from worker.executors.weights.gpu_layout import GpuCodes, stack, to_gpu
from worker.executors.weights.quantized import QuantizedMatrix
from worker.kernels.packed_matrix_torch import PackedMatrix


def matrix(bits: int, group: int, zeros: np.ndarray | int, rows: int = 3, seed: int = 0) -> QuantizedMatrix:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, (rows, 256)).astype(np.uint8)
    # Scales of 8 bits, as bfloat16 holds them: products with codes are exact.
    scales = (rng.integers(128, 256, (rows, 256 // group)) / 4096).astype(np.float32)
    offsets = -(scales * np.broadcast_to(np.asarray(zeros, np.float32), scales.shape))
    return QuantizedMatrix(codes, bits, group, scales, offsets)


def values(part: GpuCodes) -> np.ndarray:
    packed = PackedMatrix(
        torch.from_numpy(part.codes),
        part.bits,
        part.group,
        torch.from_numpy(part.scales),
        None if part.zeros is None else torch.from_numpy(part.zeros),
    )
    return packed.to_dense().numpy()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_symmetric_and_shifted_codes_keep_their_values(bits: int, group: int) -> None:
    shifts = np.random.default_rng(1).integers(0, 1 << bits, (3, 256 // group))
    for zeros in (1 << (bits - 1), shifts):
        source = matrix(bits, group, zeros)
        part = to_gpu(source)
        assert part is not None
        assert (part.zeros is None) == isinstance(zeros, int)
        assert np.array_equal(values(part), source.to_float32())


def test_what_has_no_such_form_stays_floats() -> None:
    assert to_gpu(matrix(4, 16, 8)) is None, "groups of 16"
    assert to_gpu(matrix(4, 32, np.float32(7.4))) is None, "offsets between two codes"
    assert to_gpu(matrix(4, 32, np.float32(-1))) is None, "a zero point outside the codes"


def test_a_group_of_zeros_is_zeros() -> None:
    source = matrix(4, 64, 8)
    source.scales[1, 2] = source.offsets[1, 2] = 0
    part = to_gpu(source)
    assert part is not None
    assert part.zeros is None
    assert np.array_equal(values(part), source.to_float32())


def test_matrices_of_one_product_are_stacked_where_they_agree() -> None:
    parts = [to_gpu(matrix(8, 64, zeros, seed=i)) for i, zeros in enumerate((128, 100, 128))]
    assert all(parts)
    stacked = stack([part for part in parts if part is not None])
    assert stacked is not None
    assert np.array_equal(values(stacked), np.concatenate([values(part) for part in parts if part]))
    other = to_gpu(matrix(4, 64, 8))
    assert other is not None
    assert parts[0] is not None
    assert stack([parts[0], other]) is None
