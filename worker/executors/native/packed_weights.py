"""Every parameter of a model in the form that native products read, packed once and then memory-mapped.

A packed file and its marker lie in the cache folder; the file is trusted while its size and times equal the
marker's, hashed again when they do not, and packed again when it is not what was written. Nothing is lost by
packing: floats are narrowed only where every value stays exact. Knows files and numbers; knows nothing of
what an operation does with a weight.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from services.artifacts.model_cache import cache_folder, hash_file
from services.chassis.fatal import FatalError
from worker.executors.native.library import Library, NativeError, WeightKind
from worker.executors.weights.loader import WeightSource
from worker.executors.weights.quantized import QuantizedMatrix
from worker.models.tensor_names import layer_of
from worker.plan.op import Op, OpKind, Plan

PACK_VERSION = 1
"""Of the file's layout; how a weight is packed is named by the library's digest."""
ALIGNMENT = 64
"""Bytes: a cache line and the widest vector register."""

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One weight inside the file: one parameter, or several stacked by rows."""

    kind: int
    rows: int
    cols: int
    group: int
    """Columns that share a scale; 0 for floats."""
    offset: int
    num_bytes: int


class PackedWeights:
    """A mapped file of packed weights."""

    def __init__(self, path: Path, weights: Mapping[str, PackedWeight]) -> None:
        self._weights = weights
        self._map: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")

    @property
    def num_bytes(self) -> int:
        return int(self._map.nbytes)

    def find(self, names: Sequence[str]) -> list[tuple[PackedWeight, int]]:
        """Return the weights that hold these parameters: one for all of them, or one for each.

        With each its address, good as long as this object lives.
        """
        together = self._weights.get(key_of(names))
        found = [together] if together is not None else [self._weights[name] for name in names]
        base = int(self._map.ctypes.data)
        return [(weight, base + weight.offset) for weight in found]


class SwappedLayer:
    """One model's packed weights with a single layer of another version's, to measure that layer alone."""

    def __init__(self, most: PackedWeights, version: "PackedWeights | SwappedLayer", layer: int) -> None:
        self._most, self._version = most, version
        self._prefix = f"layers.{layer}."

    @property
    def num_bytes(self) -> int:
        return self._most.num_bytes

    def find(self, names: Sequence[str]) -> list[tuple[PackedWeight, int]]:
        """Return the weights that hold these parameters, and their addresses."""
        is_swapped = any(name.startswith(self._prefix) for name in names)
        return (self._version if is_swapped else self._most).find(names)


def key_of(names: Sequence[str]) -> str:
    """Name a weight by the parameters that it holds."""
    return "+".join(names)


def open_packed(
    library: Library,
    plan: Plan,
    weights: WeightSource,
    *,
    key: str,
    environment: Mapping[str, str] = os.environ,
) -> PackedWeights:
    """Map the packed file called `key`, packed now unless that was done before.

    Args:
        key: `<model revision>-<instruction set>-<library digest>`: what decides every byte. Files of other
            digests of the same model and instruction set are removed.

    Raises:
        ArtifactError: The stored numbers cannot be read.
        FatalError: The cache cannot be written.
    """
    folder = cache_folder(environment) / "packed"
    path = folder / f"{key}-v{PACK_VERSION}.bin"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{path.stem}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = _read_marker(path)
            if entries is None:
                entries = _write(library, plan, weights, path)
                _remove_older(path)
        return PackedWeights(path, entries)
    except OSError as exc:
        raise FatalError(
            f"{folder} cannot be written ({exc.strerror or exc});"
            " set QUIRE_CACHE to a writable folder with more room"
        ) from exc


def _write(library: Library, plan: Plan, weights: WeightSource, path: Path) -> dict[str, PackedWeight]:
    started = time.monotonic()
    _log.info("packing_weights", file=str(path))
    entries: dict[str, PackedWeight] = {}
    layer = None
    digest = hashlib.sha256()
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            for names, parts in _groups(plan, weights):
                begun = layer_of(names[0])
                if begun is not None and begun != layer:
                    layer = begun
                    _log.info("packing_layer", number=layer + 1, of=plan.num_layers)
                packed, weight = _pack(library, parts, file.tell())
                entries[key_of(names)] = weight
                padded = packed.tobytes() + bytes(-packed.nbytes % ALIGNMENT)
                digest.update(padded)
                file.write(padded)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    # Only now: to rename a file changes its ctime.
    _write_marker(path, digest.hexdigest(), entries)
    seconds = round(time.monotonic() - started, 1)
    _log.info("packed_weights", bytes=path.stat().st_size, seconds=seconds)
    return entries


def _groups(
    plan: Plan, weights: WeightSource
) -> Iterator[tuple[Sequence[str], Sequence[Float32 | QuantizedMatrix]]]:
    """Yield what is packed together: all matrices that one product reads, where their formats agree."""
    seen: set[str] = set()
    for op in plan.ops:
        for names in parameter_groups(op):
            if not names or key_of(names) in seen:
                continue
            seen.add(key_of(names))
            parts = [_read(weights, name) for name in names]
            if len({_format_of(part) for part in parts}) == 1:
                yield names, parts
            else:
                yield from (([name], [part]) for name, part in zip(names, parts, strict=True))


def parameter_groups(op: Op) -> tuple[Sequence[str], ...]:
    """Return an operation's parameters in the groups that may be stacked: matrices, then biases."""
    if op.kind is OpKind.LINEAR and op.integer("biases"):
        count = len(op.weights) // 2
        return (op.weights[:count], op.weights[count:])
    if op.kind is OpKind.QK_NORM:
        return tuple((name,) for name in op.weights)
    return (op.weights,)


def _read(weights: WeightSource, name: str) -> Float32 | QuantizedMatrix:
    quantized = weights.read_quantized(name)
    return weights.read(name) if quantized is None else quantized


def _format_of(part: Float32 | QuantizedMatrix) -> tuple[WeightKind, int]:
    if isinstance(part, QuantizedMatrix):
        return (WeightKind.U4 if part.bits == 4 else WeightKind.U8), part.group
    # Vectors are read element by element, beside float32 values.
    return (narrowest_kind(part) if part.ndim == 2 else WeightKind.F32), 0


def narrowest_kind(values: Float32) -> WeightKind:
    """Return the smallest float format in which every one of the values is exact."""
    if not (values.view(np.uint32) & 0xFFFF).any():
        return WeightKind.BF16
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    return WeightKind.F16 if np.array_equal(halves.astype(np.float32), values) else WeightKind.F32


def _pack(
    library: Library, parts: Sequence[Float32 | QuantizedMatrix], offset: int
) -> tuple[Bytes, PackedWeight]:
    """Return the bytes of parts stacked by rows (vectors end to end), and their place in the file."""
    kind, group = _format_of(parts[0])
    if isinstance(parts[0], QuantizedMatrix):
        quantized = [part for part in parts if isinstance(part, QuantizedMatrix)]
        arrays = [
            np.concatenate([getattr(part, field) for part in quantized])
            for field in ("codes", "scales", "offsets")
        ]
    else:
        arrays = [np.concatenate([part for part in parts if not isinstance(part, QuantizedMatrix)])]
    rows, cols = arrays[0].shape if arrays[0].ndim == 2 else (1, len(arrays[0]))
    room = library.call("packed_bytes", kind, rows, cols, group)
    if room < 0:
        raise NativeError(library.last_error())
    packed = np.zeros(room, np.uint8)
    pointers = [ctypes.c_void_p(np.ascontiguousarray(array).ctypes.data) for array in arrays]
    if group:
        library.check("pack_codes", kind, rows, cols, group, *pointers, packed.ctypes.data)
    else:
        library.check("pack_floats", kind, rows, cols, *pointers, packed.ctypes.data)
    num_bytes = library.call("used_bytes", kind, rows, cols, group, packed.ctypes.data)
    return packed[:num_bytes], PackedWeight(kind, rows, cols, group, offset, num_bytes)


def _write_marker(path: Path, sha256: str, entries: Mapping[str, PackedWeight]) -> None:
    stat = path.stat()
    marker = {
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "ctime_ns": stat.st_ctime_ns,
        "sha256": sha256,
        "weights": {name: asdict(weight) for name, weight in entries.items()},
    }
    written = path.with_suffix(f".{os.getpid()}.json.partial")
    written.write_text(json.dumps(marker))
    written.replace(path.with_suffix(".json"))


def _read_marker(path: Path) -> dict[str, PackedWeight] | None:
    """Return the weights of a whole file; None when it is missing or damaged."""
    try:
        stat = path.stat()
        marker = json.loads(path.with_suffix(".json").read_bytes())
        entries = {name: PackedWeight(**fields) for name, fields in marker["weights"].items()}
        if (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) == (
            marker["size"],
            marker["mtime_ns"],
            marker.get("ctime_ns"),
        ):
            return entries
        if stat.st_size == marker["size"] and hash_file(path) == marker["sha256"]:
            _write_marker(path, marker["sha256"], entries)
            return entries
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    _log.warning("packed_weights_damaged", file=str(path))
    return None


def _remove_older(path: Path) -> None:
    """Remove what other builds packed of this model; who has it mapped keeps it."""
    revision, instruction_set, _ = path.stem.split("-", 2)
    for other in path.parent.glob(f"{revision}-{instruction_set}-*"):
        if other.stem != path.stem and ".partial" not in other.suffixes:
            other.unlink(missing_ok=True)
