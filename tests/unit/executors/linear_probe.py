"""Drives the native products alone, and says in float64 what they should give.

The sources are compiled with `linear_probe.cc` for one instruction set: for this machine, for another one under an
emulator, or with emulated instructions. A request is one run of that program.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worker.executors.native.build import FLAGS, SOURCES
from worker.executors.native.instruction_sets import InstructionSet
from worker.executors.native.library import Compute, WeightKind

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_SOURCES = ("activations.cc", "linear.cc", "linear_f32.cc", "linear_int8.cc", "pack.cc", "pool.cc")
X_GROUP = 32


def compile_probe(
    folder: Path, instruction_set: InstructionSet, *, compiler: str = "g++", flags: Sequence[str] = ()
) -> Path:
    """Compile the probe into `folder` and return the program."""
    program = folder / f"linear-{instruction_set.name}"
    sources = [str(SOURCES / name) for name in _SOURCES]
    probe = str(Path(__file__).with_suffix(".cc"))
    options = [*FLAGS, instruction_set.macro, *instruction_set.flags, *flags, f"-I{SOURCES}"]
    subprocess.run([compiler, *options, *sources, probe, "-o", str(program)], check=True)
    return program


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A matrix before it is packed."""

    kind: WeightKind
    shape: tuple[int, int]
    group: int = 0
    values: Float32 | None = None
    """[rows, cols], of floats."""
    codes: NDArray[np.uint8] | None = None
    """[rows, cols], of quantised weights."""
    scales: Float32 | None = None
    """[rows, cols / group]"""
    offsets: Float32 | None = None

    @property
    def arrays(self) -> list[NDArray[np.generic]]:
        """What the program is sent."""
        return [array for array in (self.values, self.codes, self.scales, self.offsets) if array is not None]

    def to_float64(self) -> Float64:
        """Return [rows, cols]."""
        if self.values is not None:
            return self.values.astype(np.float64)
        assert self.codes is not None and self.scales is not None and self.offsets is not None
        scales, offsets = (np.repeat(a.astype(np.float64), self.group, 1) for a in (self.scales, self.offsets))
        return self.codes * scales + offsets


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
    rows, cols = weight.shape
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


def quantised(x: Float32) -> Float64:
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
