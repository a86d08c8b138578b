"""A row's logits are the same bit for bit alone, batched, chunked, after a hit and on any number of threads.

For every KV format, with float and int8 products, on every instruction set of this machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from services.domain.kv_layout import KvFormat
from tests.unit.executors.batches import Part, assert_any_schedule_gives, logits_of, make_batch
from tests.unit.executors.native_models import INSTRUCTION_SETS, load_native
from tests.unit.executors.tiny_models import VOCAB, make_model, save_gguf
from worker.executors.native.library import Compute
from worker.executors.native_executor import NativeExecutor
from worker.executors.weights.loader import WeightSource

pytestmark = pytest.mark.timeout(600)
"""The first test of an instruction set compiles it."""

NUM_TOKENS = 3200
SICK = 0
"""An id whose embedding is NaN: no test's sequence holds it but those that are to be sick."""


@dataclass(frozen=True)
class Case:
    family: str
    shape: dict[str, Any] = field(default_factory=dict)
    weights: str = "F32"
    kv_format: KvFormat = KvFormat.F32
    compute: Compute = Compute.F32
    page_size: int = 16


CASES = {
    "f32": Case("llama", {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 16}),
    "bf16": Case(
        "qwen2",
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 112},
        weights="F16",
        kv_format=KvFormat.BF16,
    ),
    "int8": Case(
        "llama",
        {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "hidden_size": 96},
        weights="Q4_1",
        kv_format=KvFormat.INT8,
        compute=Compute.INT8,
    ),
    "int8-large-pages": Case(
        "qwen3", {"head_dim": 32}, weights="Q8_0", kv_format=KvFormat.INT8, compute=Compute.INT8, page_size=64
    ),
    "window": Case(
        "gemma3",
        {"tie_word_embeddings": False},
        weights="Q8_0",
        kv_format=KvFormat.INT8,
        compute=Compute.INT8,
    ),
}


@dataclass(frozen=True)
class Subject:
    """An executor and how many pages it has."""

    executor: NativeExecutor
    page_size: int

    @property
    def num_pages(self) -> int:
        return NUM_TOKENS // self.page_size

    def pages(self, first: int, num_tokens: int) -> list[int]:
        return list(range(first, first - -num_tokens // self.page_size))

    def logits(self, *parts: Part) -> NDArray[np.float32]:
        return logits_of(self.executor, parts)

    def alone(self, ids: list[int]) -> NDArray[np.float32]:
        return self.logits(Part(ids, 0, self.pages(0, len(ids))))

    def poison(self) -> None:
        """Leave in every page what a sequence of NaN leaves."""
        for first in range(0, self.num_pages, 8):
            pages = list(range(first, min(first + 8, self.num_pages)))
            self.logits(Part([SICK] * (len(pages) * self.page_size), 0, pages))


def load(case: Case, folder: Path, instruction_set: str, num_threads: int = 1) -> Subject:
    model = make_model(case.family, **case.shape)
    path = save_gguf(model, folder / "tiny.gguf", case.weights, {"embed_tokens": "F32"})
    read = WeightSource.read

    def with_a_sick_row(self: WeightSource, name: str) -> NDArray[np.float32]:
        values = read(self, name)
        if name == "embedding":
            values[SICK] = np.nan
        return values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightSource, "read", with_a_sick_row)
        executor = load_native(
            path,
            folder,
            kv_format=case.kv_format,
            compute=case.compute,
            page_size=case.page_size,
            instruction_set=instruction_set,
            num_threads=num_threads,
        )
    executor.allocate(NUM_TOKENS // case.page_size)
    return Subject(executor, case.page_size)


@pytest.fixture(
    scope="module",
    params=[(name, entry) for entry in INSTRUCTION_SETS for name in CASES],
    ids=lambda param: "-".join(param),
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    name, instruction_set = request.param
    made = load(CASES[name], tmp_path_factory.mktemp(name), instruction_set, num_threads=2)
    yield made
    made.executor.close()


def random_ids(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(SICK + 1, VOCAB, count).tolist()


def test_random_schedules_give_the_bits_of_each_sequence_alone(subject: Subject) -> None:
    rng = np.random.default_rng(1)
    sequences = [random_ids(i, int(n)) for i, n in enumerate(rng.integers(1, 300, 7))]
    expected = [subject.alone(ids) for ids in sequences]
    subject.poison()
    per_sequence = 320 // subject.page_size
    pages = np.split(rng.permutation(subject.num_pages)[: 7 * per_sequence], 7)
    assert_any_schedule_gives(expected, lambda parts: subject.logits(*parts), sequences, pages, rng)


def test_every_place_in_a_decode_batch_gives_the_same_bits(subject: Subject) -> None:
    ids = random_ids(2, 40)
    expected = subject.alone(ids)[-1]
    pages = subject.pages(0, len(ids))
    for size in range(1, 35):
        others = [Part([5], 0, [len(pages) + i]) for i in range(size - 1)]
        for place in {0, size // 2, size - 1}:
            batch = [*others[:place], Part(ids[-1:], 39, pages), *others[place:]]
            assert np.array_equal(subject.logits(*batch)[place], expected)


def test_a_prefix_hit_gives_the_bits_of_a_miss(subject: Subject) -> None:
    prefix, tails = random_ids(3, 192), [random_ids(4, 24), random_ids(5, 24)]
    expected = [subject.alone(prefix + tail)[-24:] for tail in tails]
    subject.poison()
    shared = subject.pages(10, len(prefix))
    first, second = ([*shared, place, place + 1] for place in (1, 3))
    assert np.array_equal(subject.logits(Part(prefix + tails[0], 0, first))[-24:], expected[0])
    assert np.array_equal(subject.logits(Part(tails[1], 192, second)), expected[1])
    # Both at once, on the shared pages.
    both = [Part(tails[i][-1:], 192 + 23, pages) for i, pages in enumerate((first, second))]
    assert np.array_equal(subject.logits(*both), np.stack([rows[-1] for rows in expected]))


def test_recompute_after_preemption_gives_the_bits_of_the_first_run(subject: Subject) -> None:
    ids = random_ids(6, 70)
    pages = subject.pages(4, 70)
    subject.logits(Part(ids[:50], 0, pages))
    decoded = [subject.logits(Part([ids[n]], n, pages))[0] for n in range(50, 70)]
    subject.poison()
    again = subject.logits(Part(ids, 0, subject.pages(20, 70)[::-1]))
    assert np.array_equal(again[50:], np.stack(decoded))


@pytest.mark.failure("B025")
def test_a_sequence_of_nan_leaves_its_neighbours_alone(subject: Subject) -> None:
    ids = random_ids(7, 20)
    expected = subject.alone(ids)[-1]
    sick = Part([5, SICK, 5], 0, subject.pages(30, 3))
    batch = make_batch([sick, Part(ids, 0, subject.pages(40, 20))], every_row=False)
    assert subject.executor.execute(batch).failed.tolist() == [True, False]
    logits = subject.logits(sick, Part(ids, 0, subject.pages(40, 20)))
    assert np.array_equal(logits[-1], expected)


def test_a_step_without_output_rows_only_stores(subject: Subject) -> None:
    ids = random_ids(8, 33)
    expected = subject.alone(ids)[-1]
    subject.poison()
    pages = subject.pages(5, 33)
    batch = make_batch([Part(ids[:32], 0, pages)])
    fields: dict[str, Any] = {name: getattr(batch, name) for name in batch.__slots__}
    result = subject.executor.execute(
        type(batch)(**{**fields, "out_rows": batch.out_rows[:0], "sampling": ()})
    )
    assert len(result.token_ids) == 0
    assert np.array_equal(subject.logits(Part(ids[32:], 32, pages))[0], expected)


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_threads_changes_no_bit(name: str, tmp_path: Path) -> None:
    ids = random_ids(9, 150)
    results = []
    for num_threads in (1, 2, 5):
        subject = load(CASES[name], tmp_path, "auto", num_threads)
        results.append(subject.alone(ids))
        subject.executor.close()
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
