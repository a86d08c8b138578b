"""Grids cover their groups, whatever is in them, and packed codes come back as they were."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from services.artifacts.safetensors_file import read_safetensors
from worker.executors.weights.packed.compressed_tensors import read_compressed_tensors
from worker.models.config_reader import ConfigReader
from worker.quantize.grid import fit
from worker.quantize.packing import pack, pack_words, quantization_config
from worker.quantize.rounding import round_nearest
from worker.quantize.safetensors_writer import write_safetensors
from worker.quantize.settings import Method, QuantizeSettings

EXTREMES = {
    "all positive": np.linspace(0.3, 0.9, 128),
    "all negative": -np.linspace(0.3, 0.9, 128),
    "all equal": np.full(128, 0.7),
    "all zero": np.zeros(128),
    "one outlier": np.concatenate([np.linspace(-0.01, 0.01, 127), [40.0]]),
    "tiny": np.linspace(-1e-20, 3e-20, 128),
}


def assert_half_a_scale(values: np.ndarray, bits: int, group: int) -> None:
    rounded = round_nearest(torch.from_numpy(values.astype(np.float32)), bits=bits, group=group)
    after = rounded.values().numpy()
    assert np.isfinite(after).all()
    scales = np.repeat(rounded.grid.scales.numpy(), group, axis=1)
    assert (np.abs(after - values.astype(np.float32)) <= scales * 0.5001).all()


@pytest.mark.failure("B117")
@pytest.mark.failure("B121")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("kind", EXTREMES)
def test_extreme_groups_come_back_within_half_a_scale(kind: str, group: int, bits: int) -> None:
    assert_half_a_scale(np.stack([EXTREMES[kind], EXTREMES[kind][::-1]]), bits, group)


@pytest.mark.failure("B117")
@settings(max_examples=60, deadline=None)
@given(
    values=hnp.arrays(np.float32, (2, 64), elements=st.floats(-100, 100, width=32)),
    bits=st.sampled_from([4, 8]),
    group=st.sampled_from([32, 64]),
)
def test_any_value_comes_back_within_half_a_scale(values: np.ndarray, bits: int, group: int) -> None:
    assert_half_a_scale(values, bits, group)


@pytest.mark.failure("B121")
def test_zeros_come_back_as_zeros() -> None:
    values = torch.randn(3, 64)
    values[1, 32:] = 0
    values[2] = 0
    after = round_nearest(values, bits=4, group=32).values()
    assert after[1, 32:].tolist() == [0.0] * 32
    assert after[2].tolist() == [0.0] * 64


def test_scales_are_bfloat16_numbers_that_cover_the_range() -> None:
    values = torch.randn(16, 4, 32)
    grid = fit(values, 4)
    assert torch.equal(grid.scales, grid.scales.to(torch.bfloat16).float())
    span = values.amax(-1).clamp(min=0) - values.amin(-1).clamp(max=0)
    assert bool((grid.scales * 15 >= span).all())
    assert bool((grid.zeros == grid.zeros.round()).all())


def test_words_hold_the_lowest_code_in_their_lowest_bits() -> None:
    assert pack_words(np.arange(8, dtype=np.uint8)[None], 4).tolist() == [[0x76543210]]
    assert pack_words(np.array([[1, 2, 3, 4, 5]], np.uint8), 8).tolist() == [[0x04030201, 0x05]]


@pytest.mark.parametrize(("rows", "bits"), [(7, 4), (16, 4), (5, 8)])
def test_what_is_packed_reads_back_code_for_code(tmp_path: Path, rows: int, bits: int) -> None:
    rounded = round_nearest(torch.randn(rows, 96) + 0.3, bits=bits, group=32)
    write_safetensors(tmp_path / "w.safetensors", pack("m", rounded))
    config = quantization_config(QuantizeSettings(bits=bits, group=32, method=Method.RTN))
    config.pop("quant_method")
    scheme = read_compressed_tensors(ConfigReader(config, what="quantization_config"))
    tensors = read_safetensors(tmp_path / "w.safetensors")
    stored = scheme.take("m", tensors, (rows, 96))
    assert stored is not None
    assert not tensors
    matrix = stored.to_codes()
    assert matrix is not None
    assert (matrix.bits, matrix.group) == (bits, 32)
    np.testing.assert_array_equal(matrix.codes, rounded.codes.numpy())
    np.testing.assert_array_equal(matrix.scales, rounded.grid.scales.numpy())
    np.testing.assert_array_equal(stored.to_float32(), rounded.values().numpy())
