"""The baseline holds stored numbers exactly, where packed codes round their scales and offsets to 16 bits."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.executors.batches import Part, logits_of
from worker.executors.native_executor import load_native_executor
from worker.executors.torch_executor import load_torch_executor
from worker.quality.session import EXACT

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("own_cache")]
"""The first test compiles the library."""

MODEL = Path(__file__).parents[1] / "executors" / "fixtures" / "packed" / "w4a16_asym"
PARTS = [Part([int(token) for token in np.random.default_rng(5).integers(1, 32, 24)], 0, [0, 1])]


def native_logits(*, in_floats: bool) -> np.ndarray:
    executor = load_native_executor(MODEL, model_name="tiny", options=EXACT, in_floats=in_floats)
    executor.allocate(2)
    found = logits_of(executor, PARTS).copy()
    executor.close()
    return found


def test_the_baseline_of_a_packed_checkpoint_rounds_nothing() -> None:
    reference = load_torch_executor(MODEL, model_name="tiny", num_threads=1)
    reference.allocate(2)
    expected = logits_of(reference, PARTS)
    # Codes first: their packed file must not be taken for that of the floats.
    of_codes = np.abs(native_logits(in_floats=False) - expected).max()
    of_floats = np.abs(native_logits(in_floats=True) - expected).max()
    assert of_floats < 1e-4 < of_codes
