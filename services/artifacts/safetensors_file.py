"""Reads the tensors of a model folder: one safetensors file, or shards named by an index.

Knows the container and that every shard must lie inside the folder; knows nothing of layers. Files that run
code when loaded (pickles) are refused by name.
"""

import json
from pathlib import Path
from typing import Any

from services.artifacts.errors import ArtifactError
from services.artifacts.tensors import TensorRef, map_file, tensor_at

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100 << 20
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model folder, in order of name.

    Raises:
        ArtifactError: There is none, or the index names a file outside the folder or of another kind.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        names = sorted(set(_weight_map(index).values()))
        return [_confined(folder, name) for name in names]
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if any(next(folder.glob(pattern), None) for pattern in _PICKLES):
        raise ArtifactError(
            f"{folder}: has only pickled weights, which run code when loaded; convert them to safetensors"
        )
    raise ArtifactError(f"{folder}: has no {SINGLE_FILE} and no {INDEX_FILE}; fetch the model again")


def read_tensors(folder: Path) -> dict[str, TensorRef]:
    """Map all weights of a folder; the index and the shards must name the same tensors.

    Raises:
        ArtifactError: A file is missing, damaged, truncated, or not where the index says.
    """
    tensors: dict[str, TensorRef] = {}
    for path in weight_files(folder):
        for name, tensor in read_safetensors(path).items():
            if name in tensors:
                raise ArtifactError(f"{path}: tensor {name} is also in {tensors[name].file.name}")
            tensors[name] = tensor
    index = folder / INDEX_FILE
    if index.is_file():
        for name, file_name in _weight_map(index).items():
            if name not in tensors or tensors[name].file.name != Path(file_name).name:
                raise ArtifactError(
                    f"{index}: tensor {name} is not in {file_name} as it says; fetch the model again"
                )
    return tensors


def read_safetensors(path: Path) -> dict[str, TensorRef]:
    """Map one safetensors file.

    Raises:
        ArtifactError: The file is damaged or truncated, or holds a type that we do not read.

    Source: the safetensors format: u64 header length, JSON header, data.
    """
    mapped = map_file(path)
    size = int.from_bytes(mapped[:8].tobytes(), "little")
    if mapped.size < 8 or size > min(_MAX_HEADER_BYTES, mapped.size - 8):
        raise ArtifactError(f"{path}: damaged or truncated safetensors header; fetch the model again")
    try:
        header: dict[str, Any] = json.loads(mapped[8 : 8 + size].tobytes())
        header.pop("__metadata__", None)
        entries = [
            (
                name,
                entry["dtype"],
                tuple(int(size) for size in entry["shape"]),
                *map(int, entry["data_offsets"]),
            )
            for name, entry in header.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ArtifactError(f"{path}: damaged safetensors header ({exc}); fetch the model again") from exc
    tensors = {}
    for name, dtype, shape, begin, end in entries:
        tensor = tensor_at(mapped, 8 + size + begin, name=name, file=path, dtype=dtype, shape=shape)
        if tensor.num_bytes != end - begin:
            raise ArtifactError(
                f"{path}: tensor {name} takes {end - begin} bytes, its shape {shape} in {dtype} needs"
                f" {tensor.num_bytes}; fetch the model again"
            )
        tensors[name] = tensor
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        return {str(name): str(file_name) for name, file_name in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ArtifactError(f"{index}: damaged index ({exc!r}); fetch the model again") from exc


def _confined(folder: Path, name: str) -> Path:
    """Return the shard `name`, which must be a plain safetensors file directly inside the folder."""
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise ArtifactError(
            f"{folder / INDEX_FILE}: names {name!r}, which is not a safetensors file beside it"
        )
    path = folder / name
    if not path.is_file():
        raise ArtifactError(f"{path}: named by the index and missing; fetch the model again")
    return path
