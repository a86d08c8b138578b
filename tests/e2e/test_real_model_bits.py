"""A row of logits is the same bit for bit in every situation that a step loop can bring about.

The real step scheduler over the torch executor, and over the native one with int8 KV, in this process; logits
are compared by digests of their bytes. The tiny model runs always, the real one where slow tests run.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from services.domain.generation import SamplingParams
from services.domain.kv_layout import KvFormat
from tests.e2e.reference.greedy import load
from tests.fakes.engine_harness import EngineHarness, engine_config, submit
from tests.unit.executors.native_models import load_native
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder
from worker.engine.batch import Batch, StepResult
from worker.engine.commands import Submit
from worker.executors.base import ModelProfile, nothing
from worker.executors.native_executor import NativeExecutor
from worker.executors.torch_executor import TorchExecutor, load_torch_executor

Tapped = TorchExecutor | NativeExecutor

POOL_TOKENS = 512 * 16
PAGE_SIZES = (16, 64)
"""Of the first worker and of the second."""
Row = tuple[bytes, int, int, int]
"""Digest of the prompt, seed, choice and position."""

SAMPLINGS = [
    SamplingParams(temperature=0),
    SamplingParams(seed=11),
    SamplingParams(seed=12, top_p=0.9, repetition_penalty=1.2),
    SamplingParams(temperature=0, frequency_penalty=0.5),
    SamplingParams(seed=13, top_k=30, presence_penalty=0.7, frequency_penalty=0.3),
]
"""Dealt to the requests in turn."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, whatever else is going on."""

    prompt_ids: list[int]
    sampling: SamplingParams
    num_tokens: int
    num_choices: int = 1


@dataclass(frozen=True, slots=True)
class Given:
    """What requests gave: ids by request and choice, and a digest of each row of logits."""

    ids: dict[tuple[int, int], list[int]]
    rows: dict[Row, bytes]


def row_of(prompt_ids: Sequence[int], sampling: SamplingParams, choice: int, position: int) -> Row:
    prompt = hashlib.sha256(np.array(prompt_ids, np.int64).tobytes()).digest()
    return prompt, sampling.seed, choice, position


class RecordingExecutor:
    """An executor that remembers a digest of every row of logits it gives."""

    def __init__(self, inner: Tapped) -> None:
        self._inner = inner
        self.rows: dict[Row, bytes] = {}
        self.largest_batch = 0
        self.largest_chunk = 0
        inner.on_logits = self._record

    @property
    def profile(self) -> ModelProfile:
        return self._inner.profile

    def allocate(self, num_pages: int) -> None:
        most = POOL_TOKENS // self.profile.page_size
        assert num_pages <= most, "memory was allocated once, for the largest pool"

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        self.largest_batch = max(self.largest_batch, len(batch.context_len))
        self.largest_chunk = max(self.largest_chunk, int(np.diff(batch.query_start).max()))
        return self._inner.execute(batch, meanwhile)

    def close(self) -> None:
        self._inner.on_logits = None

    def _record(self, batch: Batch, logits: NDArray[np.float32]) -> None:
        for sample, row in zip(batch.sampling, logits, strict=True):
            key = row_of(sample.prompt_ids, sample.params, sample.choice, sample.position)
            digest = hashlib.sha256(row.tobytes()).digest()
            assert self.rows.setdefault(key, digest) == digest, "a position was computed twice, differently"


class Rig:
    """One model on executors with pages of 16 and of 64 tokens, requests, and what each gives alone."""

    def __init__(self, first: Tapped, second: Tapped, asks: Sequence[Ask]) -> None:
        self.first, self.second, self.asks = first, second, asks
        apart = [self.run(self.engine(), only=[number]) for number in range(len(asks))]
        self.alone = Given(
            {key: ids for given in apart for key, ids in given.ids.items()},
            {key: row for given in apart for key, row in given.rows.items()},
        )

    def engine(self, executor: Tapped | None = None, **changes: int) -> EngineHarness:
        """Return an engine with an empty pool over memory in which others have left their KV."""
        executor = executor or self.first
        profile = executor.profile
        values = {"num_pages": POOL_TOKENS // profile.page_size, "page_size": profile.page_size}
        values |= {"max_step_tokens": 512, "max_prefill_tokens": 256}
        values |= {"vocab_size": profile.vocab_size, "max_context_tokens": profile.max_context_tokens}
        values |= {"max_sequences": 32}
        config = engine_config(**(values | changes))
        return EngineHarness(config, RecordingExecutor(executor))  # type: ignore[arg-type]

    def of(self, page_size: int) -> Tapped:
        return self.second if page_size == self.second.profile.page_size else self.first

    def run(
        self, engine: EngineHarness, *, only: Sequence[int] | None = None, steps_apart: int = 0, base: int = 0
    ) -> Given:
        """Make requests of an engine, at once or some steps apart, until all have ended.

        Args:
            base: Added to the handles, for a second run on the same engine.
        """
        numbers = range(len(self.asks)) if only is None else only
        rows = recording(engine).rows
        rows.clear()
        for number in numbers:
            engine.post(submission(base + number, self.asks[number]))
            engine.steps(steps_apart)
        engine.run(max_steps=20_000)
        engine.assert_idle()
        assert not engine.refused
        ids = {(h - base, choice): list(out) for (h, choice), out in engine.tokens.items() if h >= base}
        return Given(ids, dict(rows))


def recording(engine: EngineHarness) -> RecordingExecutor:
    assert isinstance(engine.executor, RecordingExecutor)
    return engine.executor


def submission(handle: int, ask: Ask, **options: Any) -> Submit:
    return submit(
        handle,
        ask.prompt_ids,
        max_output=ask.num_tokens,
        n=ask.num_choices,
        sampling=ask.sampling,
        **options,
    )


def tiny(kind: str, folder: Path) -> Rig:
    path = save_folder(make_model("llama"), folder / "model")
    rng = np.random.default_rng(0)
    lengths = [1, 7, 15, 16, 17, 31, 33, 47, 64, 65, 100, 127, 200, 300]
    asks = [
        Ask(rng.integers(0, VOCAB, length).tolist(), SAMPLINGS[i % 5], 24, 2 if i % 6 == 5 else 1)
        for i, length in enumerate(lengths)
    ]
    return _rig(kind, path, folder, asks)


def real(kind: str, path: Path, folder: Path) -> Rig:
    prompts = [case.prompt_ids for case in load()[1].values()]
    asks = [Ask(ids, SAMPLINGS[i % 5], 16, 1 + (i == 6)) for i, ids in enumerate(prompts)]
    return _rig(kind, path, folder, asks)


def _rig(kind: str, path: Path, folder: Path, asks: Sequence[Ask]) -> Rig:
    def load_executor(page_size: int, num_threads: int) -> Tapped:
        if kind == "torch":
            return load_torch_executor(path, model_name="bits", page_size=page_size, num_threads=1)
        return load_native(
            path, folder, page_size=page_size, kv_format=KvFormat.INT8, num_threads=num_threads
        )

    first, second = (load_executor(page_size, i + 1) for i, page_size in enumerate(PAGE_SIZES))
    for executor in (first, second):
        executor.allocate(POOL_TOKENS // executor.profile.page_size)
    return Rig(first, second, asks)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((model, kind), id=f"{model}-{kind}", marks=marks)
        for model, marks in (("tiny", []), ("real", [pytest.mark.slow, pytest.mark.timeout(600)]))
        for kind in ("torch", "native")
    ],
)
def rig(
    request: pytest.FixtureRequest, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    model, kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    made = tiny(kind, folder) if model == "tiny" else real(kind, model_path, folder)
    yield made
    made.first.close()
    made.second.close()


def test_every_request_gave_every_row(rig: Rig) -> None:
    num_rows = sum(ask.num_tokens * ask.num_choices for ask in rig.asks)
    assert sum(map(len, rig.alone.ids.values())) == num_rows
    assert len(rig.alone.rows) == num_rows
    assert len(set(rig.alone.rows.values())) > num_rows // 2, "digests tell rows apart"


@pytest.mark.failure("B094")
@pytest.mark.failure("B084")
@pytest.mark.failure("B088")
def test_all_at_once(rig: Rig) -> None:
    engine = rig.engine()
    assert rig.run(engine) == rig.alone
    assert recording(engine).largest_batch >= len(rig.asks)


@pytest.mark.failure("B084")
def test_neighbours_that_arrive_and_leave(rig: Rig) -> None:
    assert rig.run(rig.engine(), steps_apart=3) == rig.alone


def test_prefill_in_chunks_of_16(rig: Rig) -> None:
    engine = rig.engine(max_sequences=15, max_step_tokens=16, max_prefill_tokens=16)
    assert rig.run(engine) == rig.alone
    assert recording(engine).largest_chunk <= 16


@pytest.mark.failure("B040")
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_after_a_hit(rig: Rig, page_size: int) -> None:
    engine = rig.engine(rig.of(page_size))
    rig.run(engine)
    assert rig.run(engine, base=1000) == rig.alone
    for number, ask in enumerate(rig.asks):
        whole_pages = (len(ask.prompt_ids) - 1) // page_size * page_size
        assert engine.started[1000 + number].cached_tokens == whole_pages


@pytest.mark.failure("B030")
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_a_pool_so_small_that_requests_are_preempted(rig: Rig, page_size: int) -> None:
    longest = max(len(ask.prompt_ids) + ask.num_tokens for ask in rig.asks)
    num_pages = -(-longest // page_size) + 2
    engine = rig.engine(rig.of(page_size), num_pages=num_pages, headroom_tokens=0)
    assert rig.run(engine) == rig.alone
    assert engine.totals["preemptions"] > 0


@pytest.mark.failure("B084")
def test_another_worker_with_other_pages_and_threads(rig: Rig) -> None:
    assert rig.second.profile.numerics == rig.first.profile.numerics
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert rig.run(rig.engine(rig.second)) == rig.alone
    finally:
        torch.set_num_threads(threads)


def test_an_attempt_that_another_worker_takes_over(rig: Rig) -> None:
    engine = rig.engine(rig.second)
    expected = dict(rig.alone.rows)
    for number, ask in enumerate(rig.asks):
        emitted = tuple(rig.alone.ids[number, choice][: 3 + number % 9] for choice in range(ask.num_choices))
        for choice, ids in enumerate(emitted):
            engine.tokens[number, choice] = list(ids)
            for position in range(len(ids)):
                del expected[row_of(ask.prompt_ids, ask.sampling, choice, position)]
        engine.post(submission(number, ask, output_ids=emitted, attempt=2))
    engine.run()
    assert Given(dict(engine.tokens), recording(engine).rows) == Given(rig.alone.ids, expected)
