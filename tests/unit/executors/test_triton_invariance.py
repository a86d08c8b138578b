"""A row's logits are the same bit for bit alone, batched, chunked, after a hit and wherever its pages are.

Interpreted, with dots summed in one order as on a device, over memory that other sequences have used. Where
numbers are bfloat16 the interpreter converts them before it multiplies; what is stored and rounded is theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from services.domain.kv_layout import KvFormat
from tests.fakes.interpreted_dots import use_one_order
from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder, save_gguf
from worker.executors.triton_executor import load_triton_executor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
"""The interpreter takes some milliseconds for each row of each kernel."""

NUM_PAGES = 8
LENGTH = 20
IDS, OTHERS = np.random.default_rng(0).integers(0, VOCAB, (2, LENGTH)).tolist()
PAGES, ELSEWHERE = [5, 1], [0, 6]
WINDOW = {"sliding_window": 7}


@dataclass(frozen=True)
class Case:
    family: str
    weights: str = ""
    dtype: torch.dtype = torch.float32
    kv_format: KvFormat = KvFormat.INT8
    int8_rows: bool = False
    shape: dict[str, Any] = field(default_factory=dict)


CASES = {
    "f32": Case("llama", kv_format=KvFormat.F32),
    "int8-kv": Case("qwen3"),
    "int8-rows": Case("llama", "Q8_0", int8_rows=True),
    "4-bit-window-bf16": Case("gemma3", "Q4_0", torch.bfloat16, shape=WINDOW),
    "4-bit-f16": Case("llama", "Q4_0", torch.float16, KvFormat.F16),
    "window-bf16-kv": Case("mistral", "", torch.bfloat16, KvFormat.BF16, shape=WINDOW),
    "window-cap-int8-rows-bf16": Case(
        "gemma3", "Q8_0", torch.bfloat16, int8_rows=True, shape={**WINDOW, "attn_logit_softcapping": 1.5}
    ),
}
Logits = Callable[..., NDArray[np.float32]]


@pytest.fixture(params=CASES)
def logits(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logits:
    """Return what runs a step of parts (ids, start, pages) and gives the logits of all rows."""
    use_one_order(monkeypatch)
    case = CASES[request.param]
    model = make_model(case.family, num_hidden_layers=1, **case.shape)
    path = (
        save_gguf(model, tmp_path / "tiny.gguf", case.weights)
        if case.weights
        else save_folder(model, tmp_path)
    )
    executor = load_triton_executor(
        path,
        model_name="tiny",
        dtype=case.dtype,
        kv_format=case.kv_format,
        int8_rows=case.int8_rows,
        device="cpu",
    )
    executor.allocate(NUM_PAGES)
    products = {use.kernel for use in executor.profile.kernels if use.layer_kind == "gate+up"}
    kind = {"Q4_0": "triton_w4a16-g32", "Q8_0": "triton_w8a8-g32"}.get(case.weights)
    assert kind is None or products == {kind}

    def run(*parts: tuple[list[int], int, list[int]]) -> NDArray[np.float32]:
        return logits_of(executor, [Part(*part) for part in parts])

    run((OTHERS, 0, [1, 0]))
    return run


@pytest.mark.failure("B094")
def test_a_row_has_the_same_bits_in_a_batch_in_chunks_after_a_hit_and_in_other_pages(logits: Logits) -> None:
    whole = logits((IDS, 0, PAGES))
    assert np.isfinite(whole).all()
    # 1. After a hit: another sequence on the same first page, beside a stranger.
    after_hit = logits((OTHERS[:3], 0, [3]), (IDS[16:], 16, [PAGES[0], 4]))
    assert np.array_equal(after_hit[3:], whole[16:])
    # 2. In a batch, in other pages, in chunks that end anywhere; last a step that decodes.
    done = 0
    for count in (5, 8, 6, 1):
        ids = IDS[done : done + count]
        others = (OTHERS[3:4], 3, [3]) if count == 1 else (OTHERS[:2], 0, [2])
        rows = logits((ids, done, ELSEWHERE), others)[:count]
        assert np.array_equal(rows, whole[done : done + count])
        done += count
    assert done == LENGTH
