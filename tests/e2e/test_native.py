"""The suite as it starts by itself on a CPU: native, with int8 numbers, and no torch in any process."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.stack import running
from tests.e2e.stack_setup import REAL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""The first start compiles the library and packs the weights."""


async def test_by_itself_a_worker_multiplies_codes_by_int8_and_loads_no_torch(
    model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    setup = replace(REAL, executor="auto", compute="int8", kv_format="int8")
    with running(setup, model_path, tmp_path_factory.mktemp("native")) as stack:
        async with stack.client() as client:
            answer = await client.generate_text(
                "The capital of France is", temperature=0, max_output_tokens=8
            )
        assert answer.choices[0].output_tokens == 8
        assert "Paris" in answer.choices[0].text
        metrics = await stack.metrics("worker-0")
        for layer_kind, count in {"q+k+v": 30, "o": 30, "gate+up": 30, "down": 30}.items():
            assert metrics.sum("quire_kernel_info", layer_kind=layer_kind, kernel="u4_i8") == count
        # The embedding of this file is Q8_0, and its head is tied to it.
        assert metrics.sum("quire_kernel_info", layer_kind="logits", kernel="u8_i8") == 1
        assert metrics.sum("quire_kernel_info", layer_kind="embedding", kernel="u8_f32") == 1
        assert metrics.sum("quire_kernel_info", layer_kind="attention", kernel="kv_int8") == 30
        for process in stack.family():
            assert not [region.path for region in process.memory_maps() if "libtorch" in region.path]
