"""Measures whole decode steps of a random-weight model by the worker's own executor.

Knows the executor's contract and how one is made; knows nothing of its kernels. Pages are filled by prefill,
so attention reads numbers and not what was left in memory.
"""

import gc
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import torch

from bench.gpu.arithmetic import idle_and_span, kv_bytes, weights_read_bytes
from bench.gpu.context import BenchContext
from bench.gpu.goals import DECODE_STEP, INT4_SPEED, LAUNCH_GAPS, Row
from bench.gpu.random_model import RandomWeights, decode_batch, prefill_batches
from bench.gpu.trace import busy_intervals
from services.domain.kv_layout import KvFormat, KvLayout
from worker.engine.batch import Batch
from worker.executors.base import StepLimits
from worker.executors.triton_executor import TritonExecutor, stream_on
from worker.executors.weights.loader import WeightSource
from worker.models.registry import BuiltModel, build_model

_PAGE_SIZE = 16
_PROFILED_STEPS = 3


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on the device with the memory for the steps that are measured."""

    model: BuiltModel
    executor: TritonExecutor
    layout: KvLayout

    def filled_step(self, context: BenchContext, shape: tuple[int, int]) -> Batch:
        """Fill the pages of a decode step and return it. shape: sequences and their context."""
        profile = self.executor.profile
        sizes = {"page_size": profile.page_size, "vocab_size": profile.vocab_size}
        for batch in prefill_batches(*shape, chunk=context.sizes.prefill_chunk, **sizes):
            self.executor.execute(batch)
        return decode_batch(*shape, **sizes)

    def close(self) -> None:
        """Give all device memory back."""
        self.executor.close()


def load(context: BenchContext, kv_format: KvFormat, *, is_int4: bool) -> LoadedModel:
    """Load the model of random weights, with pages for both steps that are measured."""
    sizes = context.sizes
    steps = (sizes.step, sizes.compared_step)
    model = build_model(sizes.model)
    limits = StepLimits(
        max_sequences=max(count for count, _ in steps),
        max_step_tokens=max(sizes.prefill_chunk, *(count for count, _ in steps)),
        max_context_tokens=max(length for _, length in steps),
        page_size=_PAGE_SIZE,
    )
    graph_sizes = [count for count, _ in steps]
    executor = make_executor(context, model, kv_format, limits, graph_sizes=graph_sizes, is_int4=is_int4)
    layout = KvLayout(
        format=kv_format,
        num_layers=model.plan.num_layers,
        num_kv_heads=model.plan.num_kv_heads,
        head_dim=model.plan.head_dim,
        page_size=_PAGE_SIZE,
    )
    executor.allocate(max(count * -(-length // layout.page_size) for count, length in steps))
    return LoadedModel(model, executor, layout)


def make_executor(
    context: BenchContext,
    model: BuiltModel,
    kv_format: KvFormat,
    limits: StepLimits,
    *,
    graph_sizes: list[int],
    is_int4: bool,
) -> TritonExecutor:
    """Return an executor of random weights whose memory is not allocated yet."""
    group = context.sizes.group if is_int4 else None
    return TritonExecutor(
        model,
        cast(WeightSource, RandomWeights(model.plan.parameters, group=group)),
        name="random",
        revision="random",
        page_size=limits.page_size,
        dtype=torch.bfloat16,
        kv_format=kv_format,
        int8_rows=True,
        limits=limits,
        graph_sizes=graph_sizes,
        stream=stream_on(context.device),
    )


def bf16_rows(context: BenchContext, tell_rate: Callable[[float], None]) -> Iterator[Row]:
    """Yield the decode step's rows.

    Args:
        tell_rate: Given the tokens per second that INT4 is compared with.
    """
    loaded = load(context, KvFormat.BF16, is_int4=False)
    try:
        count, length = context.sizes.step
        batch = loaded.filled_step(context, context.sizes.step)
        moved = weights_read_bytes(loaded.model.plan.parameters)
        moved += kv_bytes(loaded.layout, num_sequences=count, context=length)
        yield Row(
            goal=DECODE_STEP,
            figure=step_s(context, loaded.executor, batch) * 1e3,
            bound=moved / context.copy_rate * 1e3,
            unit="ms",
        )
        tell_rate(tokens_per_s(context, loaded))
        # Last, for it needs a profiler that works on this machine.
        yield gaps_row(context, lambda: loaded.executor.execute(batch))
    finally:
        loaded.close()
        release()


def int4_row(context: BenchContext, bf16_tokens_per_s: float) -> Row:
    """Decode with 4-bit weights and int8 KV."""
    loaded = load(context, KvFormat.INT8, is_int4=True)
    try:
        figure = tokens_per_s(context, loaded)
    finally:
        loaded.close()
        release()
    return Row(goal=INT4_SPEED, figure=figure, bound=bf16_tokens_per_s, unit="tokens/s")


def tokens_per_s(context: BenchContext, loaded: LoadedModel) -> float:
    """Return what the step that formats are compared by draws in a second."""
    shape = context.sizes.compared_step
    batch = loaded.filled_step(context, shape)
    return shape[0] / step_s(context, loaded.executor, batch)


def step_s(context: BenchContext, executor: TritonExecutor, batch: Batch) -> float:
    """Return the seconds from one decode step's result to the next one's, as the worker runs them.

    A step is queued, fed by the one before it, while that one runs.
    """
    fed = replace(batch, feeds=np.arange(len(batch.ids), dtype=np.int32))
    under_way = [executor.launch(batch)]

    def step() -> None:
        under_way.append(executor.launch(fed))
        executor.collect(under_way.pop(0))

    seconds = context.timer.step(step)
    executor.collect(under_way.pop())
    return seconds


def gaps_row(context: BenchContext, step: Callable[[], object]) -> Row:
    """Profile single steps and return how long the device waited between two kernels of one."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if context.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    found = []
    with TemporaryDirectory() as folder:
        for _ in range(_PROFILED_STEPS):
            with torch.profiler.profile(activities=activities) as profile:
                step()
            path = Path(folder, "trace.json")
            profile.export_chrome_trace(str(path))
            found.append(idle_and_span(busy_intervals(path)))
    idle_us, span_us = (statistics.median(values) for values in zip(*found, strict=True))
    return Row(goal=LAUNCH_GAPS, figure=idle_us / 1e3, bound=span_us / 1e3, unit="ms")


def release() -> None:
    """Give memory that nothing holds back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
