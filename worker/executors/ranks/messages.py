"""What rank 0 and the other ranks tell each other: frames on a socket, numbers and JSON, nothing that is run.

Knows batches as arrays; knows nothing of how a step is computed. How rows are drawn from is not sent: rank 0
alone draws.
"""

import json
import socket
import struct
from dataclasses import asdict, dataclass
from enum import IntEnum
from math import prod
from typing import Any

import numpy as np

from services.domain.kv_layout import KvFormat
from worker.engine.batch import Batch
from worker.executors.base import StepLimits

_NO_FEEDS = np.empty(0, np.int32)
_HEADER = struct.Struct("<BQ")
_COUNTS = struct.Struct("<5I")


class Kind(IntEnum):
    """What a frame holds."""

    SPEC = 1
    """JSON of a `RankSpec`, to a rank that was just started."""
    LOADED = 2
    """JSON of a `RankProfile`, from a rank that has read its weights."""
    FAILED = 3
    """JSON of a text, from a rank that cannot go on."""
    JOIN = 4
    """Meet the others now."""
    ALLOCATE = 5
    """JSON of the arguments of `Executor.allocate`."""
    ALLOCATED = 6
    """From a rank whose pages are there."""
    STEP = 7
    """A batch."""
    RELEASE = 8
    """Drop the KV memory; it may be allocated anew."""


class Closed(Exception):
    """The other side is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """What one rank is to be."""

    executor: str
    """`torch` or `triton`."""
    device: str
    """`cpu`, or `cuda`: rank n takes GPU n."""
    path: str
    """The model's folder or GGUF file."""
    model_name: str
    rank: int
    size: int
    limits: StepLimits
    kv_format: str = KvFormat.F32
    """Of the KV memory; torch has f32 alone."""
    int8_rows: bool = False
    """See `load_triton_executor`, as the next two; all are triton's."""
    vendor_products: bool = False
    graph_sizes: tuple[int, ...] = ()
    num_threads: int | None = None
    """Of torch on the CPU; None leaves its own choice."""
    limit_s: float
    """Seconds that a rank waits for another inside a step."""
    store: str = ""
    """The file at which ranks meet; `load_group` chooses it."""

    @classmethod
    def from_json(cls, body: bytes | bytearray) -> "RankSpec":
        """Return what `send_json` sent."""
        fields = json.loads(body)
        limits = StepLimits(**fields.pop("limits"))
        return cls(**fields | {"limits": limits, "graph_sizes": tuple(fields["graph_sizes"])})


@dataclass(frozen=True, slots=True)
class RankProfile:
    """What a rank has loaded."""

    numerics: str
    namespace: str
    page_bytes: int
    weight_bytes: int

    @classmethod
    def from_json(cls, body: bytes | bytearray) -> "RankProfile":
        """Return what `send_json` sent."""
        return cls(**json.loads(body))


class Channel:
    """One end of the connection between rank 0 and another rank."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, kind: Kind, body: bytes = b"", *, limit_s: float | None = None) -> None:
        """Send a frame.

        Raises:
            Closed: Nobody reads, or not within `limit_s`.
        """
        try:
            self._connection.settimeout(limit_s)
            self._connection.sendall(_HEADER.pack(kind, len(body)) + body)
        except OSError as exc:
            raise Closed from exc

    def send_json(self, kind: Kind, value: Any, *, limit_s: float | None = None) -> None:
        """Send a value, or a dataclass as an object (see `send`)."""
        plain = asdict(value) if isinstance(value, (RankSpec, RankProfile)) else value
        self.send(kind, json.dumps(plain).encode(), limit_s=limit_s)

    def receive(self, *, limit_s: float | None = None) -> tuple[Kind, bytearray]:
        """Wait for a frame.

        Raises:
            Closed: The other side is gone.
            TimeoutError: None came within `limit_s`.
        """
        self._connection.settimeout(limit_s)
        kind, length = _HEADER.unpack(self._read(_HEADER.size))
        return Kind(kind), self._read(length)

    def close(self) -> None:
        """End the connection; the other side's `receive` and `send` raise `Closed`."""
        self._connection.close()

    def _read(self, length: int) -> bytearray:
        body = bytearray(length)
        rest = memoryview(body)
        while rest:
            try:
                count = self._connection.recv_into(rest)
            except TimeoutError:
                raise
            except OSError as exc:
                raise Closed from exc
            if not count:
                raise Closed
            rest = rest[count:]
        return body


def pack_batch(batch: Batch) -> bytes:
    """Return the arrays of a batch as bytes, little-endian; its rows of sampling stay here."""
    feeds = _NO_FEEDS if batch.feeds is None else batch.feeds
    counts = _COUNTS.pack(len(batch.ids), *batch.page_table.shape, len(batch.out_rows), len(feeds))
    arrays = (
        batch.ids,
        batch.positions,
        batch.query_start,
        batch.context_len,
        batch.page_table,
        batch.out_rows,
        feeds,
    )
    return counts + b"".join(np.ascontiguousarray(array, "<i4").tobytes() for array in arrays)


def unpack_batch(body: bytearray) -> Batch:
    """Return the batch that `pack_batch` packed, over the same memory, with nothing to draw.

    That a step is fed no id is not kept: it needs nothing of the step before.
    """
    tokens, sequences, width, outputs, fed = _COUNTS.unpack_from(body)
    shapes = ((tokens,), (tokens,), (sequences + 1,), (sequences,), (sequences, width), (outputs,), (fed,))
    numbers = np.frombuffer(body, "<i4", offset=_COUNTS.size)
    arrays = []
    start = 0
    for shape in shapes:
        arrays.append(numbers[start : start + prod(shape)].reshape(shape))
        start += prod(shape)
    ids, positions, query_start, context_len, page_table, out_rows, feeds = arrays
    return Batch(
        ids=ids,
        positions=positions,
        query_start=query_start,
        context_len=context_len,
        page_table=page_table,
        out_rows=out_rows,
        sampling=(),
        feeds=feeds if fed else None,
    )
