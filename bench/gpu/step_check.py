"""Compares whole steps of the worker's executor with the torch executor's, and their bits with each other.

A small model of random weights: what a step launches beside the kernels that `correctness` compares
(embedding, rotation and store, sampling, captured graphs) is right if the logits are near. Knows executors
and batches; knows nothing of kernels or time.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from bench.gpu.comparing import BitsDiffer
from bench.gpu.context import BenchContext
from bench.gpu.model_rows import make_executor
from bench.gpu.random_model import RandomWeights, decode_batch, prefill_batches
from services.domain.kv_layout import KvFormat
from worker.engine.batch import Batch, StepResult
from worker.executors.base import StepLimits
from worker.executors.torch_executor import TorchExecutor
from worker.executors.triton_executor import TritonExecutor
from worker.models.registry import build_model

_RELATIVE = 0.05
"""Mean error over mean size that bfloat16 and int8 KV make of float32 logits, at most."""

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Steps:
    """Prompts of some sequences, and the step in which each makes a token."""

    prefills: list[Batch]
    decode: Batch

    def first_alone(self) -> Batch:
        """Return the decode step of the first sequence alone."""
        first = self.decode
        return replace(
            first,
            ids=first.ids[:1],
            positions=first.positions[:1],
            query_start=first.query_start[:2],
            context_len=first.context_len[:1],
            page_table=first.page_table[:1],
            out_rows=first.out_rows[:1],
            sampling=first.sampling[:1],
        )

    def first_whole(self) -> Batch:
        """Return one step of all tokens of the first sequence."""
        alone, length = self.first_alone(), int(self.decode.context_len[0])
        return replace(
            alone,
            ids=np.append(self.prefills[0].ids[: length - 1], alone.ids),
            positions=np.arange(length, dtype=np.int32),
            query_start=np.array([0, length], np.int32),
            out_rows=np.array([length - 1], np.int32),
        )


def check_steps(context: BenchContext, kv_format: KvFormat) -> None:
    """Prefill, decode, and decode again alone and without a cache.

    Raises:
        AssertionError: Logits are not near, a drawn token is not theirs, or a step reserves device memory.
        BitsDiffer: The logits of a token depend on the batch, or on how its context was computed.
    """
    config, (count, length) = context.sizes.checked_model, context.sizes.checked_step
    model, page_size = build_model(config), 16
    sizes = {"page_size": page_size, "vocab_size": int(config["vocab_size"])}
    steps = Steps(
        list(prefill_batches(count, length, chunk=length * 2, **sizes)), decode_batch(count, length, **sizes)
    )
    limits = StepLimits(
        max_sequences=count, max_step_tokens=2 * length, max_context_tokens=length, page_size=page_size
    )
    ours = make_executor(context, model, kv_format, limits, graph_sizes=[1, count], is_int4=False)
    theirs = TorchExecutor(
        model,
        RandomWeights(model.plan.parameters),  # type: ignore[arg-type]
        name="random",
        revision="random",
        page_size=page_size,
    )
    num_pages = steps.decode.page_table.size
    for executor in (ours, theirs):
        executor.allocate(num_pages)
    try:
        together = _compare(ours, theirs, steps)
        alone, whole = (_step(ours, batch)[0] for batch in (steps.first_alone(), steps.first_whole()))
        _assert_reserves_nothing(context, ours, steps)
    finally:
        for executor in (ours, theirs):
            executor.close()
    if context.device.type == "cuda":
        if not np.array_equal(alone[0], together[0]):
            raise BitsDiffer("a decoded token has other logits alone than in a batch")
        if not np.array_equal(whole[0], together[0]):
            raise BitsDiffer("a decoded token has other logits than the same token in its prompt")


def _compare(ours: TritonExecutor, theirs: TorchExecutor, steps: Steps) -> Float32:
    """Run all steps on both and return our logits of the last."""
    logits = np.empty(0, np.float32)
    for batch in (*steps.prefills, steps.decode):
        (expected, _), (logits, drawn) = _step(theirs, batch), _step(ours, batch)
        error = float(np.abs(logits - expected).mean() / np.abs(expected).mean())
        assert error <= _RELATIVE, f"logits are off by {error:.1%} of their mean size"
        assert not drawn.failed.any(), "a row counts as NaN"
        assert np.array_equal(drawn.token_ids, logits.argmax(-1)), "what is drawn is not the largest logit"
    return logits


def _assert_reserves_nothing(context: BenchContext, executor: TritonExecutor, steps: Steps) -> None:
    """Run all steps again, without the tap of logits that makes room of its own."""
    if context.device.type != "cuda":
        return
    before = torch.cuda.memory_reserved(context.device)
    for batch in (*steps.prefills, steps.decode, steps.first_alone(), steps.first_whole()):
        executor.execute(batch)
    more = torch.cuda.memory_reserved(context.device) - before
    assert not more, f"steps reserved {more} bytes of device memory"


def _step(executor: TritonExecutor | TorchExecutor, batch: Batch) -> tuple[Float32, StepResult]:
    """Run a step and return its logits and what it drew."""
    seen: list[Float32] = []
    executor.on_logits = lambda batch, logits: seen.append(logits.copy())
    result = executor.execute(batch)
    executor.on_logits = None
    return seen[0], result
