"""Drives the native products alone, and says in float64 what they should give.

A request is one run of the program that `linear_probe.cc` makes of them.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.unit.executors.probe_targets import probe_command
from worker.executors.native.library import Compute, WeightKind

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_SOURCES = ("activations.cc", "linear.cc", "linear_f32.cc", "linear_int8.cc", "pack.cc", "pool.cc")
X_GROUP = 32


def linear_command(folder: Path, name: str) -> list[str]:
    """Return the command that runs the probe, for one of PROGRAMS."""
    return probe_command(folder, name, Path(__file__).with_suffix(".cc"), _SOURCES)


@dataclass(frozen=True)
class Floats:
    """A matrix of floats before it is packed."""

    kind: WeightKind
    values: Float32
    """[rows, cols]"""
    group = 0

    @property
    def arrays(self) -> list[NDArray[Any]]:
        return [self.values]

    def to_float64(self) -> Float64:
        return self.values.astype(np.float64)


@dataclass(frozen=True)
class Codes:
    """A quantised matrix before it is packed: scale * code + offset."""

    kind: WeightKind
    group: int
    values: NDArray[np.uint8]
    """[rows, cols]"""
    scales: Float32
    """[rows, cols / group]"""
    offsets: Float32

    @property
    def arrays(self) -> list[NDArray[Any]]:
        return [self.values, self.scales, self.offsets]

    def to_float64(self) -> Float64:
        wide = [np.repeat(a.astype(np.float64), self.group, 1) for a in (self.scales, self.offsets)]
        return self.values * wide[0] + wide[1]


Weight = Floats | Codes


@dataclass(frozen=True, kw_only=True)
class Run:
    """One product."""

    x: Float32
    compute: Compute = Compute.INT8
    num_threads: int = 1
    stride: int = 0
    """Of the output's rows; 0 is as many as there are."""


class Refused(Exception):
    """The program's own error."""


@dataclass(frozen=True)
class Answer:
    """What the program says of a weight and of its products."""

    used_bytes: int
    rows: Float32
    """[rows, cols]: the weight, read back."""
    products: list[Float32]
    """[num_rows, stride], run by run."""


def ask(program: Sequence[str], weight: Weight, runs: Sequence[Run], bias: Float32 | None = None) -> Answer:
    """Run the program, with its emulator if there is one.

    Raises:
        Refused: The weight cannot be packed.
    """
    rows, cols = weight.values.shape
    head = np.array([weight.kind, rows, cols, weight.group, bias is not None, len(runs)], np.int32)
    parts = [head, *weight.arrays, *([bias] if bias is not None else [])]
    strides = [run.stride or rows for run in runs]
    for run, stride in zip(runs, strides, strict=True):
        parts += [np.array([run.compute, run.num_threads, len(run.x), stride], np.int32), run.x]
    request = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    said = subprocess.run(program, input=request, capture_output=True, check=True, timeout=100).stdout
    status, _, data = said.partition(b"\n")
    if not status.startswith(b"ok "):
        raise Refused(status.decode())
    floats = np.frombuffer(data, np.float32)
    ends = np.cumsum([rows * cols, *(len(run.x) * stride for run, stride in zip(runs, strides, strict=True))])
    assert len(floats) == ends[-1]
    first, *products = np.split(floats, ends[:-1])
    shaped = [y.reshape(-1, stride) for y, stride in zip(products, strides, strict=True)]
    return Answer(int(status.split()[1]), first.reshape(rows, cols), shaped)


def int8_of(x: Float32) -> Float64:
    """Return what activations are once they are int8: by groups of 32, max|x| / 127, nearest, ties to even.

    x: [rows, cols], finite.
    """
    rows, cols = x.shape
    padded = np.zeros((rows, -(-cols // X_GROUP), X_GROUP), np.float32)
    padded.reshape(rows, -1)[:, :cols] = x
    largest = np.abs(padded).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest < 1e-35, 0, np.float32(127) / largest).astype(np.float32)
    codes = np.round(padded * inverse)
    scales = np.where(largest < 1e-35, 0, largest / np.float32(127)).astype(np.float32)
    return (codes * scales.astype(np.float64)).reshape(rows, -1)[:, :cols]


def make_codes(
    kind: WeightKind, rows: int, cols: int, group: int, *, symmetric: bool = False, levels: int = 0
) -> Codes:
    """Return random codes.

    Args:
        symmetric: Every offset is -centre * scale, as in Q4_0 and Q8_0; else any (Q4_1).
        levels: Of the codes; with it scales are no float16 values (Q4_K, Q5_K, Q6_K), without it they are.
    """
    rng = np.random.default_rng((kind, rows, cols, group, symmetric))
    full = 16 if kind is WeightKind.U4 else 256
    codes = rng.integers(0, levels or full, (rows, cols)).astype(np.uint8)
    shape = (rows, cols // group)
    scales = rng.uniform(0.001, 0.02, shape) * rng.choice([-1, 1], shape)
    offsets = -scales * rng.uniform(0, levels or full, shape)
    if not levels:
        scales, offsets = scales.astype(np.float16), offsets.astype(np.float16)
    scales, offsets = scales.astype(np.float32), offsets.astype(np.float32)
    return Codes(kind, group, codes, scales, -np.float32(full // 2) * scales if symmetric else offsets)


def make_floats(kind: WeightKind, rows: int, cols: int) -> Floats:
    """Return random values that the kind holds exactly."""
    values = np.random.default_rng((kind, rows, cols)).normal(0, 0.05, (rows, cols)).astype(np.float32)
    if kind is WeightKind.BF16:
        values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    elif kind is WeightKind.F16:
        values = values.astype(np.float16).astype(np.float32)
    return Floats(kind, values)


def make_x(num_rows: int, cols: int, seed: int = 0) -> Float32:
    """Return activations: rows of several magnitudes, each with an outlier."""
    rng = np.random.default_rng((seed, num_rows, cols))
    x = rng.normal(0, 1, (num_rows, cols)) * 10.0 ** rng.uniform(-2, 2, (num_rows, 1))
    x[:, rng.integers(cols)] *= 20
    return x.astype(np.float32)
