"""A batch that points outside its memory is refused before anything is computed; slots can be looked at."""

import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.executors.batches import Part, logits_of, make_batch
from tests.unit.executors.native_models import load_native
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder
from worker.executors.base import ExecutorFault
from worker.executors.native.library import NativeError
from worker.executors.native.step_arrays import room_for_logits
from worker.executors.native_executor import NativeExecutor

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the library."""

NUM_PAGES = 6
GOOD = make_batch([Part([1, 2, 3], 14, [0, 1]), Part([4], 0, [2])], every_row=False)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.fixture
def executor(tmp_path: Path) -> NativeExecutor:
    made = load_native(save_folder(make_model("llama"), tmp_path / "model"), tmp_path)
    made.allocate(NUM_PAGES)
    return made


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ids": int32(1, 2, VOCAB, 4)}, "id is not in the vocabulary"),
        ({"ids": int32(1, -1, 3, 4)}, "id is not in the vocabulary"),
        ({"page_table": int32(0, NUM_PAGES, 2, 0).reshape(2, 2)}, "no such page"),
        ({"page_table": int32(0, 1, -1, 0).reshape(2, 2)}, "no such page"),
        ({"page_table": int32(0, 2).reshape(2, 1)}, "too long"),
        ({"context_len": int32(17, 600)}, "too long"),
        ({"context_len": int32(16, 1)}, "positions"),
        ({"positions": int32(15, 14, 16, 0)}, "positions"),
        ({"positions": int32(-3, -2, -1, 0), "context_len": int32(0, 1)}, "more tokens than its length"),
        ({"query_start": int32(0, 3, 5)}, "query_start"),
        ({"query_start": int32(0, 0, 4)}, "without tokens"),
        ({"out_rows": int32(2, 4)}, "output row"),
    ],
)
def test_a_bad_batch_is_refused_and_the_next_one_computed(
    executor: NativeExecutor, changes: dict[str, Any], says: str
) -> None:
    expected = logits_of(executor, [Part([1, 2, 3], 0, [0])])
    with pytest.raises(ExecutorFault, match=says):
        executor.execute(replace(GOOD, **changes))
    assert np.array_equal(logits_of(executor, [Part([1, 2, 3], 0, [0])]), expected)
    assert executor.execute(GOOD).failed.tolist() == [False, False]


def test_more_pages_than_the_machine_can_address_are_a_fault(tmp_path: Path) -> None:
    made = load_native(save_folder(make_model("llama"), tmp_path / "model"), tmp_path)
    with pytest.raises(ExecutorFault, match="cannot allocate 1000000000000000 pages"):
        made.allocate(10**15)


def test_a_slot_is_read_as_the_step_left_it(tmp_path: Path) -> None:
    model = make_model("llama")
    executor = load_native(save_folder(model, tmp_path / "model"), tmp_path)
    executor.allocate(NUM_PAGES)
    logits = logits_of(executor, [Part([1, 2, 3, 4], 0, [0])])
    normed = executor.read_slot(executor.plan.ops[-1].inputs[0], num_rows=4)
    head = model.lm_head.weight.detach().numpy()
    np.testing.assert_allclose(normed @ head.T, logits, rtol=0, atol=1e-5)
    with pytest.raises(NativeError, match="no such slot"):
        executor.read_slot(len(executor.plan.slots), num_rows=4)


def test_a_shorter_context_takes_smaller_tables_and_gives_the_same_bits(
    executor: NativeExecutor, tmp_path: Path
) -> None:
    short = load_native(tmp_path / "model", tmp_path, max_positions=48)
    short.allocate(NUM_PAGES)
    assert short.profile.max_context_tokens == 48
    assert short.profile.weight_bytes < executor.profile.weight_bytes
    assert short.profile.numerics == executor.profile.numerics
    last = [Part([5] * 48, 0, [0, 1, 2])]
    assert np.array_equal(logits_of(short, last), logits_of(executor, last))
    with pytest.raises(ExecutorFault, match="too long"):
        logits_of(short, [Part([5] * 49, 0, [0, 1, 2, 3])])
    longer = load_native(tmp_path / "model", tmp_path, max_positions=1 << 20)
    assert longer.profile.max_context_tokens == executor.profile.max_context_tokens


def test_logits_lie_outside_the_heap_and_may_be_more_than_there_is() -> None:
    room = room_for_logits(3, 50)
    room[:] = np.arange(150).reshape(3, 50)
    assert room[2, 49] == 149
    # From the heap it would keep what a smaller one left behind.
    assert isinstance(room.base.base.obj, mmap.mmap)
    with pytest.raises(MemoryError, match="1099511627776 rows of 50 logits"):
        room_for_logits(1 << 40, 50)
