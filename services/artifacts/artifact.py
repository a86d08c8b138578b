"""Opens a model on disk: what gateway, worker and command line need to know about it, from one place.

Knows files; knows nothing of layers, devices or requests. The tokeniser is built only when asked for, because
workers never need it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from services.artifacts.chat_template import ChatTemplate
from services.artifacts.digest import digest_files
from services.artifacts.errors import ArtifactError
from services.artifacts.folder_tokenizer import tokenizer_from_folder
from services.artifacts.gguf_config import ROPE_FACTORS_TENSOR, config_of
from services.artifacts.gguf_file import GgufFile, read_gguf
from services.artifacts.gguf_tokenizer import tokenizer_from_gguf
from services.artifacts.model_folder import (
    chat_template_of,
    ids_of,
    normalise_config,
    read_json,
)
from services.artifacts.safetensors_file import read_tensors
from services.artifacts.tensors import TensorRef
from services.artifacts.tokenizer import ModelTokenizer


class ArtifactKind(StrEnum):
    """How the model lies on disk. GGUF keeps its own tensor names and ggml's row order of q and k."""

    FOLDER = "folder"
    GGUF = "gguf"


@dataclass(frozen=True, kw_only=True)
class ModelArtifact:
    """One model on disk. Tensors are memory-mapped; everything else is small."""

    name: str
    kind: ArtifactKind
    path: Path
    config: Mapping[str, Any]
    """Under the keys of Hugging Face's config.json, rope settled (see `normalise_config`, `config_of`)."""
    tensors: Mapping[str, TensorRef]
    """By the names in the file."""
    generation_defaults: Mapping[str, float]
    """`temperature`, `top_p`, `top_k` where the model declares them."""
    chat_template: str | None
    declared_eos_ids: frozenset[int]
    """Ends of sequence that config files or metadata declare (the tokeniser may declare more)."""
    files: tuple[Path, ...]
    _gguf: GgufFile | None = field(default=None, repr=False)

    @cached_property
    def revision(self) -> str:
        """16 hex digits that name weights and config; reads the files once (98 MB: 0.1-0.3 s)."""
        return digest_files(self.files)

    @cached_property
    def tokenizer(self) -> ModelTokenizer:
        """The model's tokeniser, built on first use (half a second for 49,152 tokens).

        Raises:
            ArtifactError: The model has none, or one that we do not read.
        """
        if self._gguf is not None:
            return tokenizer_from_gguf(self._gguf.metadata, str(self.path))
        return tokenizer_from_folder(self.path, self.config)

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The model's chat template, compiled on first use; None when it has none.

        Raises:
            ArtifactError: It does not compile or uses what we do not offer.
        """
        return None if self.chat_template is None else ChatTemplate(self.chat_template, self.tokenizer)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a sequence: the union of all declarations; builds the tokeniser."""
        return self.declared_eos_ids | self.tokenizer.eos_ids


def open_artifact(path: Path | str) -> ModelArtifact:
    """Open a Hugging Face folder or a GGUF file.

    Raises:
        ArtifactError: Nothing there, not a model, damaged, or of a kind that we do not read.
    """
    path = Path(path)
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) == 1 and not (path / "config.json").exists():
            return _open_gguf(ggufs[0])
        return _open_folder(path)
    if not path.exists():
        raise ArtifactError(f"{path}: does not exist; give a model folder or a .gguf file")
    if path.suffix != ".gguf":
        raise ArtifactError(f"{path}: only model folders and .gguf files are read; convert the model")
    return _open_gguf(path)


def _open_gguf(path: Path) -> ModelArtifact:
    file = read_gguf(path)
    metadata = file.metadata
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    eos_ids = [metadata[f"tokenizer.ggml.{key}"] for key in keys if f"tokenizer.ggml.{key}" in metadata]
    return ModelArtifact(
        name=path.stem,
        kind=ArtifactKind.GGUF,
        path=path,
        config=config_of(file),
        tensors={name: tensor for name, tensor in file.tensors.items() if name != ROPE_FACTORS_TENSOR},
        generation_defaults={
            name: metadata[f"general.sampling.{key}"]
            for key, name in [("temp", "temperature"), ("top_p", "top_p"), ("top_k", "top_k")]
            if f"general.sampling.{key}" in metadata
        },
        chat_template=metadata.get("tokenizer.chat_template"),
        declared_eos_ids=frozenset(int(eos_id) for eos_id in eos_ids),
        files=(path,),
        _gguf=file,
    )


def _open_folder(folder: Path) -> ModelArtifact:
    config_path = folder / "config.json"
    config = normalise_config(read_json(config_path, required=True))
    generation = read_json(folder / "generation_config.json")
    tensors = read_tensors(folder)
    names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer.model")
    small_files = [folder / name for name in names if (folder / name).is_file()]
    defaults = {
        key: generation[key] for key in ("temperature", "top_p", "top_k") if generation.get(key) is not None
    }
    return ModelArtifact(
        name=folder.resolve().name,
        kind=ArtifactKind.FOLDER,
        path=folder,
        config=config,
        tensors=tensors,
        generation_defaults=defaults,
        chat_template=chat_template_of(folder, read_json(folder / "tokenizer_config.json")),
        declared_eos_ids=frozenset(
            [*ids_of(config.get("eos_token_id")), *ids_of(generation.get("eos_token_id"))]
        ),
        files=(*small_files, *sorted({tensor.file for tensor in tensors.values()})),
    )
