"""Drives the native attention sources alone, and says in float64 what they should give.

The sources are compiled with `attention_probe.cc` for one instruction set: natively, for an emulator or with
emulated instructions; a session is one run of that program.
"""

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.domain.kv_layout import KvFormat
from tests.unit.executors.probe_targets import probe_command
from worker.executors.native.library import KV_FORMATS

Float32 = NDArray[np.float32]

_SOURCES = ("attention.cc", "attention_plan.cc", "kv_store.cc", "pool.cc")


def attention_command(folder: Path, name: str) -> list[str]:
    """Return the command that runs the probe, for one of PROGRAMS."""
    return probe_command(folder, name, Path(__file__).with_suffix(".cc"), _SOURCES)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the probe's memory looks like."""

    kv_format: KvFormat = KvFormat.F32
    page_size: int = 16
    num_layers: int = 1
    num_kv_heads: int = 1
    head_dim: int = 16
    num_heads: int = 2
    num_pages: int = 64
    num_threads: int = 1

    @property
    def qkv_width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, kw_only=True)
class Look:
    """How attention looks back."""

    window: int = 0
    soft_cap: float = 0.0
    scale: float = 0.25


@dataclass(frozen=True)
class Rows:
    """Rows of one sequence in a step: those from `start` on, with the pages of the whole sequence."""

    qkv: Float32
    start: int
    pages: Sequence[int]


def rope_table(num_positions: int, head_dim: int) -> Float32:
    """Return [num_positions, head_dim]: cosines of the pairs, then sines."""
    frequencies = 100.0 ** (-np.arange(head_dim // 2) / (head_dim // 2))
    angles = np.arange(num_positions)[:, None] * frequencies
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@dataclass
class Session:
    """Commands for one run of the probe, in order; `run` gives what they gave."""

    shape: Shape
    _commands: list[bytes] = field(default_factory=list)
    _steps: list[list[int]] = field(default_factory=list)
    _dumps: int = 0

    def __post_init__(self) -> None:
        shape = self.shape
        sizes = (shape.page_size, shape.num_layers, shape.num_kv_heads, shape.head_dim, shape.num_heads)
        numbers = (KV_FORMATS.index(shape.kv_format), *sizes, shape.num_pages, shape.num_threads)
        self._commands.append(b"N" + struct.pack("<8i", *numbers))

    def fill(self, byte: int, pages: Sequence[int]) -> None:
        """Fill pages with a byte; 255 is NaN as float32, bf16 and scale. All pages are so at first."""
        self._commands += [b"F" + struct.pack("<3i", byte, page, 1) for page in pages]

    def step(self, parts: Sequence[Rows], look: Look, *, layer: int = 0) -> None:
        """Store and attend the rows of some sequences. Page ids that nobody may read are out of range."""
        lengths = [len(part.qkv) for part in parts]
        table = np.full((len(parts), max(len(part.pages) for part in parts)), 1 << 28, np.int32)
        for i, part in enumerate(parts):
            needed = -(-(part.start + lengths[i]) // self.shape.page_size)
            table[i, :needed] = part.pages[:needed]
        positions = np.concatenate([np.arange(part.start, part.start + len(part.qkv)) for part in parts])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        contexts = np.array([part.start + len(part.qkv) for part in parts])
        sizes = (sum(lengths), len(parts), table.shape[1], int(positions.max()) + 1)
        self._commands.append(
            b"S"
            + struct.pack("<2i2f4i", layer, look.window, look.soft_cap, look.scale, *sizes)
            + b"".join(array.astype(np.int32).tobytes() for array in (positions, starts, contexts, table))
            + rope_table(sizes[3], self.shape.head_dim).tobytes()
            + np.concatenate([part.qkv for part in parts]).astype(np.float32).tobytes()
        )
        self._steps.append(lengths)

    def dump(self, page: int) -> None:
        """Ask for the bytes of a page; only after all steps."""
        self._commands.append(b"D" + struct.pack("<i", page))
        self._dumps += 1

    def count_reads(
        self, program: Sequence[str], parts: Sequence[tuple[int, Sequence[int]]], window: int
    ) -> int:
        """Return how many chunks of 256 keys a decode step reads: of each sequence its context and pages."""
        contexts = [context for context, _ in parts]
        table = np.zeros((len(parts), max(len(pages) for _, pages in parts)), np.int32)
        for i, (_, pages) in enumerate(parts):
            table[i, : len(pages)] = pages
        arrays = (np.array(contexts) - 1, np.arange(len(parts) + 1), np.array(contexts), table)
        self._commands.append(
            b"R"
            + struct.pack("<5i", window, 256, len(parts), len(parts), table.shape[1])
            + b"".join(array.astype(np.int32).tobytes() for array in arrays)
        )
        (num_reads,) = struct.unpack("<i", self._execute(program))
        return int(num_reads)

    def run(self, program: Sequence[str]) -> list[list[Float32]]:
        """Return the attention output of every step, part by part: [rows, heads * head_dim] each."""
        return self._parse(self._execute(program))[0]

    def run_dumps(self, program: Sequence[str]) -> list[bytes]:
        """Return the pages asked for."""
        rest = self._parse(self._execute(program))[1]
        size = len(rest) // self._dumps
        return [rest[i * size : (i + 1) * size] for i in range(self._dumps)]

    def _execute(self, program: Sequence[str]) -> bytes:
        done = subprocess.run(list(program), input=b"".join(self._commands), capture_output=True)
        if done.returncode != 0:
            raise ProbeError(done.stderr.decode() or f"exit code {done.returncode}")
        return done.stdout

    def _parse(self, data: bytes) -> tuple[list[list[Float32]], bytes]:
        width = self.shape.num_heads * self.shape.head_dim
        outputs = []
        for lengths in self._steps:
            size = sum(lengths) * width * 4
            rows = np.frombuffer(data[size : 2 * size], np.float32).reshape(-1, width)
            outputs.append(np.split(rows, np.cumsum(lengths)[:-1]))
            data = data[2 * size :]
        return outputs, data


class ProbeError(Exception):
    """The probe refused; the text is its own."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Rotated queries, and keys and values as a format keeps them: [rows, heads, head_dim]."""

    q: Float32
    k: Float32
    v: Float32


def store(shape: Shape, qkv: Float32) -> Stored:
    """Rotate and round a whole sequence as the pages have it, in the native order of operations."""
    half, rotated = shape.head_dim // 2, shape.num_heads + shape.num_kv_heads
    heads = qkv.astype(np.float32).reshape(len(qkv), -1, shape.head_dim)
    table = rope_table(len(qkv), shape.head_dim)
    cosine, sine = table[:, None, :half], table[:, None, half:]
    a, b = heads[:, :rotated, :half], heads[:, :rotated, half:]
    turned = np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=2)
    k, v = turned[:, shape.num_heads :], heads[:, rotated:]
    if shape.kv_format is KvFormat.BF16:
        k, v = to_bf16(k), to_bf16(v)
    elif shape.kv_format is KvFormat.INT8:
        k, v = to_int8(k), to_int8(v)
    return Stored(turned[:, : shape.num_heads], k, v)


def to_bf16(x: Float32) -> Float32:
    """Round to bfloat16, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def to_int8(x: Float32) -> Float32:
    """Round to codes of a scale per row, and back."""
    largest = np.abs(x).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    scale = largest / np.float32(127)
    rounded: Float32 = np.rint(x * inverse) * scale
    return rounded


def attend(shape: Shape, stored: Stored, look: Look) -> NDArray[np.float64]:
    """Return in float64 the attention of a whole sequence: [rows, heads * head_dim]."""
    rows, group = len(stored.q), shape.num_heads // shape.num_kv_heads
    q, k, v = (x.astype(np.float64).transpose(1, 0, 2) for x in (stored.q, stored.k, stored.v))
    scores = q @ np.repeat(k, group, axis=0).transpose(0, 2, 1) * look.scale
    if look.soft_cap:
        scores = look.soft_cap * np.tanh(scores / look.soft_cap)
    back = np.arange(rows)[:, None] - np.arange(rows)[None, :]
    is_hidden = (back < 0) | ((back >= look.window) & (look.window > 0))
    scores[:, is_hidden] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    attended: NDArray[np.float64] = weights @ np.repeat(v, group, axis=0)
    attended /= weights.sum(-1, keepdims=True)
    return attended.transpose(1, 0, 2).reshape(rows, -1)
