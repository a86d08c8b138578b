"""After the warm-up no step asks for a kernel that was not compiled."""

from pathlib import Path

import numpy as np
import pytest
import torch

from services.domain.kv_layout import KvFormat
from tests.fakes.fake_stream import FakeStream
from tests.fakes.launch_recorder import LaunchRecorder
from tests.unit.executors.tiny_models import make_model, save_folder, save_gguf
from worker.executors.base import StepLimits
from worker.executors.triton_executor import load_triton_executor
from worker.largest_steps import batch_of
from worker.warm_up import _kinds, warm_up_steps

SIZES = (1, 2, 4, 8, 16, 24, 32, 40)
LIMITS = StepLimits(max_sequences=40, max_step_tokens=200, max_context_tokens=120, page_size=16)


def test_one_number_of_each_kind_stands_for_all() -> None:
    assert _kinds((16, 64), 100) == [1, 2, 16, 17, 32, 65, 80]
    assert _kinds((16, 64), 40) == [1, 2, 16, 17, 32]
    assert _kinds((), 5) == [1, 2]
    assert _kinds((16,), 16) == [1, 2, 16]


def test_warm_up_steps_keep_to_the_limits() -> None:
    smallest = StepLimits(max_sequences=1, max_step_tokens=2, max_context_tokens=20, page_size=16)
    for limits in (LIMITS, smallest):
        steps = warm_up_steps(limits)
        assert len(steps) < 40
        for step in steps:
            assert 1 <= len(step.ids) <= limits.max_step_tokens
            assert len(step.context_len) <= limits.max_sequences
            assert len(step.out_rows) == len(step.sampling) <= min(limits.max_outputs, len(step.ids))
            assert step.positions.min() >= 0
            assert not step.page_table.any()


WIDE = {"hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 8}
"""Sums over so many columns are cut into pieces."""


@pytest.mark.parametrize(
    ("family", "shape", "kind", "kv_format"),
    [
        ("llama", {"num_hidden_layers": 1}, "", KvFormat.F16),
        ("llama", WIDE, "Q4_0", KvFormat.INT8),
        ("llama", WIDE, "Q8_0", KvFormat.INT8),
        ("gemma3", {}, "", KvFormat.INT8),
    ],
)
def test_nothing_is_compiled_after_the_warm_up(
    family: str,
    shape: dict[str, int],
    kind: str,
    kv_format: KvFormat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder, stream = LaunchRecorder(monkeypatch), FakeStream(computes=False)
    model = make_model(family, **shape)
    path = save_gguf(model, tmp_path / "tiny.gguf", kind) if kind else save_folder(model, tmp_path)
    executor = load_triton_executor(
        path,
        model_name="tiny",
        dtype=torch.float16,
        kv_format=kv_format,
        int8_rows=True,
        device="cpu",
        limits=LIMITS,
        graph_sizes=SIZES,
        stream=stream,
    )
    executor.allocate(1, captures=False)
    for step in warm_up_steps(LIMITS):
        executor.execute(step)
    assert not stream.calls["capture"], "it would hold for a pool that is dropped"
    compiled = set(recorder.keys)
    executor.close()
    executor.allocate(2)
    assert stream.calls["capture"] == len(SIZES)
    assert recorder.keys - compiled == set(), "what is captured was compiled by the profile run"
    random = np.random.default_rng(0)
    for seats in range(1, LIMITS.max_sequences + 1):
        counts = [1] * seats
        executor.execute(batch_of(counts, LIMITS))
        counts[-1] = int(random.integers(1, LIMITS.max_context_tokens))
        num_outputs = int(random.integers(0, min(sum(counts), LIMITS.max_outputs) + 1))
        executor.execute(batch_of(counts, LIMITS, num_outputs=num_outputs))
    kernels = {"linear_kernel", "decode_kernel", "ragged_kernel", "rms_norm_kernel", "draw_row_kernel"}
    assert {key[0] for key in compiled} >= kernels
    assert ("add_pieces_kernel" in {key[0] for key in compiled}) == (shape is WIDE)
    assert recorder.keys - compiled == set()
