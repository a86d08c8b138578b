"""Every family of models over two and four ranks, which exchange over gloo: the greedy ids of one process.

Ranks are threads here, each with a process group of its own: `test_ranks` has them as processes.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.executors.test_ranks import NUM_PAGES, alone, greedy_ids
from tests.unit.executors.tiny_models import make_model, save_folder
from worker.engine.batch import Batch, StepResult
from worker.executors.base import nothing
from worker.executors.ranks.messages import pack_batch, unpack_batch
from worker.executors.torch_executor import TorchExecutor, load_torch_executor
from worker.executors.torch_ranks import Ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
"""Where cores are few, every exchange waits for all threads to have had their turn."""

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma3"]
"""Plain; with a window; with biases; with norms of q and k; with both, and norms after sums."""


class Threads:
    """Ranks of one model, each step in all of them at once; rank 0 draws."""

    def __init__(self, ranks: list[TorchExecutor], pool: ThreadPoolExecutor) -> None:
        self._ranks, self._pool = ranks, pool

    def together(self, call: Callable[[int, TorchExecutor], object]) -> list[object]:
        """Call every rank in a thread of its own and return what each returns."""
        return list(self._pool.map(call, range(len(self._ranks)), self._ranks))

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        sent = pack_batch(batch)
        results = self.together(
            lambda rank, one: one.execute(unpack_batch(bytearray(sent)) if rank else batch)
        )
        meanwhile()
        assert isinstance(results[0], StepResult)
        return results[0]


@contextmanager
def threads(path: Path, size: int, store: Path) -> Iterator[Threads]:
    ranks = [
        load_torch_executor(
            path, model_name="tiny", num_threads=1, ranks=Ranks(rank, size, device="cpu", limit_s=120.0)
        )
        for rank in range(size)
    ]
    with ThreadPoolExecutor(size) as pool:
        made = Threads(ranks, pool)
        made.together(lambda rank, one: one.join(store))
        made.together(lambda rank, one: one.allocate(NUM_PAGES))
        try:
            yield made
        finally:
            made.together(lambda rank, one: one.leave())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_draws_over_ranks_what_one_process_draws(family: str, tmp_path: Path) -> None:
    """Two key-value heads: each of two ranks has its own, each of four shares one with a neighbour."""
    path = save_folder(make_model(family, vocab_size=208, num_key_value_heads=2), tmp_path / "model")
    expected = greedy_ids(alone(path))
    assert len({tuple(ids) for ids in expected}) == len(expected), "prompts that say something"
    for size in (2, 4):
        with threads(path, size, tmp_path / f"store-{size}") as made:
            assert greedy_ids(made) == expected  # type: ignore[arg-type]
