"""The executors that keep one contract, and steps made of them by hand.

An implementation joins by adding a factory to `EXECUTORS`; it gives an executor with a vocabulary of at least
200 ids whose memory is not allocated yet.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from services.domain.generation import SamplingParams
from services.domain.kv_layout import KvFormat
from worker.engine.batch import Batch, SampleRow, StepResult
from worker.executors.base import Executor, StepLimits, nothing
from worker.executors.native.library import Compute
from worker.executors.sim import SimConfig, SimExecutor

if TYPE_CHECKING:
    from worker.executors.torch_ranks import Ranks
    from worker.executors.triton_executor import TritonExecutor
    from worker.executors.triton_stream import Stream

PAGE = 16
NUM_PAGES = 32
LIMITS = StepLimits(max_sequences=8, max_step_tokens=128, max_context_tokens=512, page_size=PAGE)


def sim() -> Executor:
    return SimExecutor(SimConfig(vocab_size=500, time_scale=0))


def tiny_torch() -> Executor:
    # Imports of seconds, which the other implementations do not need.
    from tests.unit.executors.tiny_models import make_model, save_folder
    from worker.executors.torch_executor import load_torch_executor

    with tempfile.TemporaryDirectory() as folder:
        path = save_folder(make_model("llama", vocab_size=256), Path(folder))
        return load_torch_executor(path, model_name="tiny", num_threads=1)


@cache
def tiny_ranks() -> Executor:
    """Two ranks in torch, started once: their memory is allocated anew for each test."""
    from services.artifacts.artifact import open_artifact
    from tests.unit.executors.tiny_models import make_model, save_folder
    from worker.executors.ranks.group import load_group
    from worker.executors.ranks.messages import RankSpec

    with tempfile.TemporaryDirectory() as folder:
        path = save_folder(make_model("llama", vocab_size=256), Path(folder))
        spec = RankSpec(
            executor="torch",
            device="cpu",
            path=str(path),
            model_name="tiny",
            rank=0,
            size=2,
            limits=LIMITS,
            num_threads=1,
            limit_s=120.0,
        )
        return load_group(open_artifact(path), spec)


def tiny_native(
    kv_format: KvFormat = KvFormat.F32, compute: Compute = Compute.F32, kind: str = ""
) -> Executor:
    from tests.unit.executors.native_models import load_native
    from tests.unit.executors.tiny_models import make_model, save_folder, save_gguf

    model = make_model("llama", vocab_size=256)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = save_gguf(model, folder / "tiny.gguf", kind) if kind else save_folder(model, folder / "model")
        return load_native(path, folder, kv_format=kv_format, compute=compute, num_threads=2)


def tiny_triton(
    stream: "Stream | None" = None,
    graph_sizes: tuple[int, ...] = (),
    ranks: "Ranks | None" = None,
    *,
    page_size: int = PAGE,
    kv_format: KvFormat = KvFormat.F32,
) -> "TritonExecutor":
    import torch

    from tests.unit.executors.tiny_models import make_model, save_folder
    from worker.executors.triton_executor import load_triton_executor

    # As small as it may be: the interpreter takes a tenth of a second for each product.
    model = make_model("llama", vocab_size=208, intermediate_size=64, num_hidden_layers=1)
    with tempfile.TemporaryDirectory() as folder:
        path = save_folder(model, Path(folder))
        return load_triton_executor(
            path,
            model_name="tiny",
            page_size=page_size,
            dtype=torch.float32,
            kv_format=kv_format,
            device="cpu",
            limits=replace(LIMITS, page_size=page_size),
            graph_sizes=graph_sizes,
            stream=stream,
            ranks=ranks,
        )


def tiny_triton_graphs() -> Executor:
    from tests.fakes.fake_stream import FakeStream

    return tiny_triton(FakeStream(), (1, 4, 8))


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "sim": sim,
    "torch": tiny_torch,
    "torch-ranks": tiny_ranks,
    "native": tiny_native,
    "native-bf16": partial(tiny_native, KvFormat.BF16, Compute.F32, "F16"),
    "native-int8": partial(tiny_native, KvFormat.INT8, Compute.INT8, "Q4_0"),
    # Pages of 64 are in `test_triton_page_sizes`: each implementation that is interpreted costs a minute.
    "triton-pages-of-32": partial(tiny_triton, page_size=32),
    "triton-graphs": tiny_triton_graphs,
}
SLOW = {"torch-ranks", "triton-pages-of-32", "triton-graphs"}
"""Processes that import torch; interpreted."""


class Sequence:
    """One sequence with pages of its own."""

    def __init__(
        self, prompt_ids: list[int], pages: list[int], params: SamplingParams, forbidden: frozenset[int]
    ) -> None:
        self.prompt_ids = prompt_ids
        self.output_ids: list[int] = []
        self.pages = pages
        self.params = params
        self.forbidden = forbidden
        self.num_computed = 0

    def tokens(self) -> list[int]:
        return [*self.prompt_ids, *self.output_ids]

    def row(self) -> SampleRow:
        return SampleRow(
            params=self.params,
            choice=0,
            position=len(self.output_ids),
            prompt_ids=self.prompt_ids,
            output_ids=list(self.output_ids),
            forbidden_ids=self.forbidden,
        )


def sequence(
    seed: int, length: int, pages: list[int], forbidden: frozenset[int] = frozenset(), **params: object
) -> Sequence:
    ids = np.random.default_rng(seed).integers(0, 200, length).tolist()
    return Sequence(ids, pages, SamplingParams(seed=seed, **params), forbidden)  # type: ignore[arg-type]


def batch_of(work: list[tuple[Sequence, int]]) -> Batch:
    """Return the step of the next `count` tokens of each sequence, which count as computed then."""
    ids: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    for seq, count in work:
        # A token that is not drawn yet is what the step before feeds.
        ids += [*seq.tokens(), 0][seq.num_computed : seq.num_computed + count]
        positions += range(seq.num_computed, seq.num_computed + count)
        seq.num_computed += count
        ends.append(len(ids))
    width = max(len(seq.pages) for seq, _ in work)
    table = np.zeros((len(work), width), np.int32)
    for i, (seq, _) in enumerate(work):
        table[i, : len(seq.pages)] = seq.pages
    sampled = _sampled(work)
    return Batch(
        ids=np.array(ids, np.int32),
        positions=np.array(positions, np.int32),
        query_start=np.array([0, *ends], np.int32),
        context_len=np.array([seq.num_computed for seq, _ in work], np.int32),
        page_table=table,
        out_rows=np.array([ends[i] - 1 for i in sampled], np.int32),
        sampling=tuple(work[i][0].row() for i in sampled),
    )


def step(
    executor: Executor, work: list[tuple[Sequence, int]], meanwhile: Callable[[], None] = nothing
) -> StepResult:
    """Compute the next `count` tokens of each sequence, and append what is drawn."""
    result = executor.execute(batch_of(work), meanwhile)
    for i, token in zip(_sampled(work), result.token_ids.tolist(), strict=True):
        work[i][0].output_ids.append(token)
    return result


def _sampled(work: list[tuple[Sequence, int]]) -> list[int]:
    return [i for i, (seq, _) in enumerate(work) if seq.num_computed >= len(seq.tokens())]


def generate(executor: Executor, seq: Sequence, count: int, chunk: int = 1000) -> list[int]:
    while len(seq.output_ids) < count:
        step(executor, [(seq, min(chunk, len(seq.tokens()) - seq.num_computed))])
    return seq.output_ids


def ready(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    """Yield an executor with its memory, for a fixture, and close it."""
    if name.startswith("triton"):
        from tests.fakes.interpreted_dots import use_one_order

        use_one_order(monkeypatch)
    made = EXECUTORS[name]()
    made.allocate(NUM_PAGES)
    yield made
    made.close()
