"""A row's logits are the same bit for bit alone, batched, chunked, after a hit and after recompute."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from services.domain.kv_layout import PAGE_SIZES
from tests.unit.executors.batches import Part, assert_any_schedule_gives, logits_of, make_batch
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder
from worker.executors.torch_executor import TorchExecutor, load_torch_executor
from worker.kernels.paged_attention import KEY_BLOCK

NUM_PAGES = 200
PAGE = 16

SHAPES = [
    ("llama", {"num_attention_heads": 8, "num_key_value_heads": 8}),
    ("llama", {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "hidden_size": 60}),
    ("qwen2", {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 112}),
    ("qwen3", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}),
    ("mistral", {"sliding_window": 40}),
    ("mistral", {"sliding_window": 150, "head_dim": 32}),
    ("gemma3", {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0, "num_hidden_layers": 6}),
]


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape[0]}-{len(shape[1])}")
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchExecutor:
    family, overrides = request.param
    folder = save_folder(make_model(family, **overrides), tmp_path_factory.mktemp(family))
    executor = load_torch_executor(folder, model_name="tiny", num_threads=1)
    executor.allocate(NUM_PAGES)
    return executor


def poison(executor: TorchExecutor) -> None:
    """Fill every page with NaN, as a failed sequence may leave it; the page of zeros is not the pool's."""
    rows = executor._rows
    assert rows is not None
    rows[: NUM_PAGES * executor._layout.page_rows].fill_(float("nan"))


def alone(executor: TorchExecutor, ids: list[int]) -> NDArray[np.float32]:
    return logits_of(executor, [Part(ids, 0, list(range(-(-len(ids) // PAGE))))])


def test_random_schedules_give_the_bits_of_each_sequence_alone(executor: TorchExecutor) -> None:
    rng = np.random.default_rng(1)
    for _ in range(4):
        sequences = [rng.integers(0, VOCAB, int(n)).tolist() for n in rng.integers(1, 300, 7)]
        expected = [alone(executor, ids) for ids in sequences]
        poison(executor)
        pages = np.split(rng.permutation(NUM_PAGES)[: 7 * 20], 7)
        assert_any_schedule_gives(expected, partial(logits_of, executor), sequences, pages, rng)


def test_every_row_index_of_a_decode_batch_gives_the_same_bits(executor: TorchExecutor) -> None:
    ids = np.random.default_rng(2).integers(0, VOCAB, 40).tolist()
    expected = alone(executor, ids)[-1]
    for size in range(1, 34):
        parts = [Part([5], 0, [50 + i]) for i in range(size - 1)]
        for place in {0, size // 2, size - 1}:
            batch = [*parts[:place], Part(ids[-1:], 39, [0, 1, 2]), *parts[place:]]
            assert np.array_equal(logits_of(executor, batch)[place], expected)


@pytest.mark.failure("B040")
def test_a_prefix_hit_gives_the_bits_of_a_miss(executor: TorchExecutor) -> None:
    rng = np.random.default_rng(3)
    prefix, tails = rng.integers(0, VOCAB, 144).tolist(), rng.integers(0, VOCAB, (2, 24)).tolist()
    expected = [alone(executor, prefix + tail)[-24:] for tail in tails]
    poison(executor)
    shared = list(range(100, 109))
    first = [Part(prefix + tails[0], 0, [*shared, 1, 2])]
    assert np.array_equal(logits_of(executor, first)[-24:], expected[0])
    assert np.array_equal(logits_of(executor, [Part(tails[1], 144, [*shared, 7, 3])]), expected[1])


@pytest.mark.failure("B023")
@pytest.mark.failure("B030")
def test_recompute_after_preemption_gives_the_bits_of_the_first_run(executor: TorchExecutor) -> None:
    ids = np.random.default_rng(4).integers(0, VOCAB, 70).tolist()
    prompt, pages = ids[:50], [9, 4, 120, 33, 61]
    logits_of(executor, [Part(prompt, 0, pages)])
    decoded = [logits_of(executor, [Part([ids[n]], n, pages)])[0] for n in range(50, 70)]
    poison(executor)
    again = logits_of(executor, [Part(ids, 0, [150, 2, 80, 81, 10])])
    assert np.array_equal(again[50:], np.stack(decoded))


@pytest.mark.failure("B025")
def test_a_sequence_of_nan_leaves_its_neighbours_alone(executor: TorchExecutor) -> None:
    ids = np.random.default_rng(5).integers(0, VOCAB, 20).tolist()
    expected = alone(executor, ids)[-1]
    rows = executor._rows
    assert rows is not None
    sick = Part([1], 16, [40, 41])
    rows[40 * executor._layout.page_rows : 41 * executor._layout.page_rows].fill_(float("nan"))
    batch = make_batch([sick, Part(ids, 0, [42, 43])], every_row=False)
    result = executor.execute(batch)
    assert result.failed.tolist() == [True, False]
    assert np.array_equal(logits_of(executor, [sick, Part(ids, 0, [42, 43])])[-1], expected)


def test_memory_outside_every_window_is_not_read(tmp_path: Path) -> None:
    folder = save_folder(make_model("mistral", sliding_window=40), tmp_path)
    executor = load_torch_executor(folder, model_name="tiny", num_threads=1)
    executor.allocate(NUM_PAGES)
    ids = np.random.default_rng(8).integers(0, VOCAB, 300).tolist()
    pages = list(range(20))
    expected = alone(executor, ids)
    rows = executor._rows
    assert rows is not None
    # From position 200 on, no window reaches into the first block of keys.
    rows[: KEY_BLOCK // PAGE * executor._layout.page_rows].fill_(float("nan"))
    assert np.array_equal(logits_of(executor, [Part(ids[200:], 200, pages)]), expected[200:])


def test_a_step_without_output_rows_only_stores(executor: TorchExecutor) -> None:
    ids = np.random.default_rng(6).integers(0, VOCAB, 33).tolist()
    expected = alone(executor, ids)[-1]
    poison(executor)
    batch = make_batch([Part(ids[:32], 0, [5, 6, 7])])
    silent = {"out_rows": batch.out_rows[:0], "sampling": ()}
    fields: dict[str, Any] = {name: getattr(batch, name) for name in batch.__slots__}
    result = executor.execute(type(batch)(**{**fields, **silent}))
    assert len(result.token_ids) == 0
    assert np.array_equal(logits_of(executor, [Part(ids[32:], 32, [5, 6, 7])])[0], expected)


@pytest.fixture(scope="module")
def of_page_size(tmp_path_factory: pytest.TempPathFactory) -> dict[int, TorchExecutor]:
    """One model on pages of every size, in memory of the same number of tokens."""
    folder = save_folder(make_model("llama"), tmp_path_factory.mktemp("pages"))
    made = {}
    for page_size in PAGE_SIZES:
        made[page_size] = load_torch_executor(folder, model_name="tiny", page_size=page_size, num_threads=1)
        made[page_size].allocate(NUM_PAGES * PAGE // page_size)
    return made


def test_the_page_size_changes_no_bit(of_page_size: dict[int, TorchExecutor]) -> None:
    """The same schedule of chunks and decodes on each, with pages in no order."""
    rng = np.random.default_rng(8)
    sequences = [rng.integers(0, VOCAB, n).tolist() for n in (1, 15, 64, 65, 200, 290)]
    chunks = [rng.choice([1, 2, 16, 33, 64, 100], 300).tolist() for _ in sequences]
    expected = [alone(of_page_size[PAGE], ids) for ids in sequences]
    for page_size, executor in of_page_size.items():
        per_sequence = -(-300 // page_size)
        pages = np.split(rng.permutation(NUM_PAGES * PAGE // page_size)[: 6 * per_sequence], 6)
        done = [0] * len(sequences)
        for step in range(300):
            live = [i for i, ids in enumerate(sequences) if done[i] < len(ids)]
            if not live:
                break
            counts = [min(chunks[i][step], len(sequences[i]) - done[i]) for i in live]
            parts = [
                Part(sequences[i][done[i] : done[i] + count], done[i], pages[i].tolist())
                for i, count in zip(live, counts, strict=True)
            ]
            logits = logits_of(executor, parts)
            for i, count in zip(live, counts, strict=True):
                assert np.array_equal(logits[:count], expected[i][done[i] : done[i] + count])
                logits = logits[count:]
                done[i] += count
        assert done == [len(ids) for ids in sequences]


def test_the_number_of_threads_changes_no_bit(executor: TorchExecutor) -> None:
    ids = np.random.default_rng(7).integers(0, VOCAB, 150).tolist()
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(alone(executor, ids))
    torch.set_num_threads(threads)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
