"""The least time a step can take: what it must multiply and read, at the rates this machine has just shown.

Rates are of all threads together, measured in the same run as what stands beside them. A floor counts
products and one reading of weights and KV; it knows nothing of scales, norms, softmax, sampling or caches.
"""

import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from worker.engine.batch import Batch
from worker.executors.native.build import FLAGS, SOURCES, choose, find_compiler
from worker.executors.native.instruction_sets import this_cpu
from worker.executors.native.library import Compute
from worker.plan.op import OpKind, Plan

_READ_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine does in a second."""

    read_bytes: float
    products: dict[Compute, float]
    """Multiply-adds of the instructions that products are made of."""


def measure_rates(num_threads: int) -> Rates:
    """Measure what `num_threads` read and multiply together."""
    chosen = choose("auto", this_cpu())
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "peak")
        command = [find_compiler(os.environ), *FLAGS, chosen.macro, *chosen.flags, f"-I{SOURCES}"]
        subprocess.run([*command, str(Path(__file__).with_name("peak.cc")), "-o", program], check=True)
        said = subprocess.run([program, str(num_threads)], check=True, capture_output=True, text=True).stdout
    codes, floats = map(float, said.split())
    return Rates(_read_rate(num_threads), {Compute.INT8: codes, Compute.F32: floats})


def _read_rate(num_threads: int) -> float:
    """Return bytes per second that `num_threads` read together, the best of five passes."""
    block = np.ones(_READ_BYTES // 8, np.int64)
    parts = np.array_split(block, num_threads)
    best = float("inf")
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(5):
            began = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, time.perf_counter() - began)
    return _READ_BYTES / best


def multiply_adds(plan: Plan, batch: Batch) -> int:
    """Return the multiply-adds of a step's matrices and attention.

    Worked number: a layer of 4 heads of 16 in a step of one token at position 9 takes 2 * 4 * 16 * 10 for
    scores and values, beside its matrices.
    """
    seen = batch.positions.astype(np.int64) + 1
    total = 0
    for op in plan.ops:
        if op.kind in (OpKind.LINEAR, OpKind.LOGITS):
            matrices = (plan.parameters[name] for name in op.weights)
            rows = len(batch.ids) if plan.slots[op.outputs[0]].rows == "T" else len(batch.out_rows)
            total += rows * sum(prod(shape) for shape in matrices if len(shape) == 2)
        elif op.kind is OpKind.PAGED_ATTENTION:
            window = op.integer("window")
            keys = int((np.minimum(seen, window) if window else seen).sum())
            total += 2 * plan.num_heads * plan.head_dim * keys
    return total
