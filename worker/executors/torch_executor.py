"""The reference executor: a plain loop over the plan in torch, float32, on the CPU.

Knows plans, weights and pages; knows nothing of requests or why a row is in the step. Every row of logits is
the same bit for bit alone, batched, in any chunking and after a prefix hit: matrices work on tiles of rows
whose sizes were proven equal at load, attention on tiles of one sequence in fixed blocks of keys.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.domain.ids import Namespace
from services.domain.kv_layout import KvFormat
from worker.engine.batch import Batch, StepResult
from worker.engine.sampler import sample
from worker.executors.base import ExecutorFault, LogitsTap, ModelProfile, digest_of, nothing
from worker.executors.kernel_uses import count_uses, is_named
from worker.executors.torch_plan import TorchPlan
from worker.executors.torch_ranks import Ranks
from worker.executors.torch_step import StepBuilder
from worker.executors.weights.loader import WeightSource, open_model, shard_model
from worker.models.registry import BuiltModel


class TorchExecutor:
    """`worker.executors.base.Executor` in torch."""

    on_logits: LogitsTap | None = None
    """Called after each step with the batch and its logits [O, vocab] float32, before they are sampled.
    For tests and for comparing executors; it must not keep or change the array."""

    def __init__(
        self,
        model: BuiltModel,
        weights: WeightSource,
        *,
        name: str,
        revision: str,
        page_size: int,
        ranks: Ranks | None = None,
    ) -> None:
        plan, config = model.plan, model.config
        self._layout = plan.kv_layout(KvFormat.F32, page_size)
        with torch.inference_mode():
            self._plan = TorchPlan(plan, weights, max_positions=config.max_positions, ranks=ranks)
        numerics = digest_of("torch", torch.__version__, revision, self._plan.numerics, self._layout.format)
        self._profile = ModelProfile(
            model=name,
            revision=revision,
            namespace=Namespace(digest_of(revision, self._layout.digest, numerics)),
            numerics=numerics,
            executor="torch",
            vocab_size=config.vocab_size,
            max_context_tokens=config.max_positions,
            page_size=page_size,
            page_bytes=self._layout.page_bytes,
            weight_bytes=self._plan.weight_bytes,
            # Whatever the file holds, everything reads float32.
            kernels=count_uses((op, "torch_float32") for op in plan.ops if is_named(op)),
        )
        self._ranks = ranks
        self._num_heads, self._windows = plan.num_heads, plan.windows
        self._rows: Tensor | None = None
        self._builder: StepBuilder | None = None

    @property
    def profile(self) -> ModelProfile:
        """What is loaded and what it costs."""
        return self._profile

    def join(self, store: Path) -> None:
        """Meet the other ranks, once (see `Ranks.join`), before memory is allocated.

        Raises:
            ExecutorFault: They did not all come in time.
        """
        assert self._ranks is not None, "this model is not shared"
        try:
            self._ranks.join(store)
            self._plan.agree()
            self._ranks.bound()
        except RuntimeError as exc:
            raise ExecutorFault("the ranks of this worker did not all meet") from exc

    def allocate(self, num_pages: int, *, captures: bool = True) -> None:
        """Allocate `num_pages` pages and, behind them, one of zeros that nobody writes.

        Raises:
            ExecutorFault: The machine does not have that much memory.
        """
        assert self._rows is None, "KV memory is allocated once"
        layout = self._layout
        try:
            # numpy's zeros come from the system untouched: memory is committed page by page, when used.
            zeros = np.zeros(((num_pages + 1) * layout.page_rows, layout.head_dim), np.float32)
            self._rows = torch.from_numpy(zeros)
        except MemoryError as exc:
            raise ExecutorFault(f"cannot allocate {num_pages} pages of {layout.page_bytes} bytes") from exc
        self._builder = StepBuilder(
            layout,
            num_heads=self._num_heads,
            row_tiles=self._plan.row_tiles,
            query_tiles=self._plan.query_tiles,
            windows=self._windows,
            zero_page=num_pages,
        )

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        """Run the plan once and draw a token for every output row (see `Executor.execute`)."""
        assert self._rows is not None, "allocate comes before the first step"
        assert self._builder is not None
        meanwhile()
        try:
            with torch.inference_mode():
                logits = self._plan.run(self._builder.build(batch), self._rows, self._layout)
        except (RuntimeError, MemoryError) as exc:
            raise ExecutorFault("a step failed in torch") from exc
        if self.on_logits is not None:
            self.on_logits(batch, logits)
        return sample(logits, batch.sampling, batch.targets)

    def close(self) -> None:
        """Drop the KV memory; weights go with the executor itself."""
        self._rows = None
        self._builder = None

    def leave(self) -> None:
        """Exchange nothing with the other ranks any more (see `Ranks.leave`)."""
        if self._ranks is not None:
            self._ranks.leave()


def load_torch_executor(
    source: ModelArtifact | Path | str,
    *,
    model_name: str,
    page_size: int = 16,
    num_threads: int | None = None,
    ranks: Ranks | None = None,
) -> TorchExecutor:
    """Load a model folder or GGUF file into a torch executor. KV memory comes with `allocate`.

    Args:
        source: What `open_artifact` reads or gave.
        model_name: The name callers use.
        page_size: Tokens in a page.
        num_threads: Threads of torch in this process; None leaves torch's own choice.
        ranks: With whom the model is shared; this process loads its own share.

    Raises:
        ArtifactError: The model cannot be read or is not one that we compute; names file and tensor.
        CannotShard: It does not divide over so many ranks.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    artifact = source if isinstance(source, ModelArtifact) else open_artifact(source)
    model, weights = open_model(artifact)
    if ranks is not None:
        model, weights = shard_model(model, weights, rank=ranks.rank, size=ranks.size)
    return TorchExecutor(
        model, weights, name=model_name, revision=artifact.revision, page_size=page_size, ranks=ranks
    )
