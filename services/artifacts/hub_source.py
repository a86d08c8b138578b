"""Fetches a model folder from a Hugging Face hub over plain HTTPS.

Knows the hub's two routes (list of files, file at a revision) and which files we read. Pickled weights are
never fetched. Knows nothing of accounts: gated models must be fetched by other means.
"""

import hashlib
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.artifacts.errors import ArtifactError
from services.artifacts.model_cache import write_marker
from services.artifacts.progress import Progress

PREFIX = "hf:"
DEFAULT_ENDPOINT = "https://huggingface.co"
_NAME = re.compile(r"hf:([\w-][\w.-]*)/([\w-][\w.-]*)")
_WANTED = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "model.safetensors.index.json"),
)
_TIMEOUT_S = 10.0
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file to fetch."""

    name: str
    num_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on a hub, at one revision."""

    repository: str
    """`org/name`."""
    endpoint: str
    revision: str
    files: tuple[HubFile, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all files to fetch."""
        return sum(file.num_bytes for file in self.files)


def repository_of(name: str) -> str:
    """Return `org/name` of `hf:org/name`.

    Raises:
        ArtifactError: Not of that form.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ArtifactError(f"{name}: not of the form hf:organisation/model")
    return f"{match[1]}/{match[2]}"


def folder_name(repository: str) -> str:
    """Return the name of the repository's folder in the cache."""
    return "hf--" + repository.replace("/", "--")


def look_up(name: str, environment: Mapping[str, str]) -> HubModel:
    """Ask the hub (`HF_ENDPOINT`, or the public one) what the model consists of.

    Raises:
        ArtifactError: No hub in reach, no such model, or one without safetensors weights.
    """
    repository = repository_of(name)
    endpoint = environment.get("HF_ENDPOINT", DEFAULT_ENDPOINT).rstrip("/")
    with _opened(f"{endpoint}/api/models/{repository}?blobs=true", endpoint, name) as response:
        try:
            listing: dict[str, Any] = json.load(response)
            files = tuple(
                HubFile(
                    entry["rfilename"], int(entry.get("size") or 0), (entry.get("lfs") or {}).get("sha256")
                )
                for entry in listing["siblings"]
                if _is_wanted(entry["rfilename"])
            )
            revision = str(listing.get("sha") or "main")
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ArtifactError(f"{endpoint}: gave no list of {name}'s files; check HF_ENDPOINT") from exc
    if not any(file.name.endswith(".safetensors") for file in files):
        raise ArtifactError(f"{name}: has no safetensors weights on {endpoint}; choose another model")
    return HubModel(repository, endpoint, revision, files)


def fetch_from_hub(model: HubModel, folder: Path, progress: Progress) -> None:
    """Download all files of `model` into `folder`, check those whose digest is known, and mark them.

    Raises:
        ArtifactError: The hub failed, or a file is not what it announced.
        OSError: `folder` cannot be written.
    """
    digests = {}
    done = 0
    for file in model.files:
        path = urllib.parse.quote(f"/{model.repository}/resolve/{model.revision}/{file.name}")
        digest = hashlib.sha256()
        with (
            _opened(model.endpoint + path, model.endpoint, file.name) as response,
            (folder / file.name).open("wb") as out,
        ):
            while chunk := response.read(_CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                progress(done, max(done, model.num_bytes), f"downloading {file.name}")
        digests[file.name] = digest.hexdigest()
        size = (folder / file.name).stat().st_size
        if (file.num_bytes and size != file.num_bytes) or file.sha256 not in (None, digests[file.name]):
            raise ArtifactError(f"{file.name} of {model.repository}: came damaged; try again")
    write_marker(folder, digests)


def _is_wanted(name: str) -> bool:
    return name in _WANTED or ("/" not in name and not name.startswith(".") and name.endswith(".safetensors"))


@contextmanager
def _opened(url: str, endpoint: str, what: str) -> Iterator[http.client.HTTPResponse]:
    """Open `url`; every failure to speak with the hub, also while reading, becomes one line."""
    if not url.startswith(("https://", "http://")):
        raise ArtifactError(f"{endpoint}: not an http address; check HF_ENDPOINT")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            yield response
    except urllib.error.HTTPError as exc:
        raise ArtifactError(f"{what}: {endpoint} answered {exc.code} {exc.reason}; check the name") from exc
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as exc:
        reason = getattr(exc, "reason", exc)
        raise ArtifactError(
            f"{what}: {endpoint} cannot be reached ({reason}); set HF_ENDPOINT, or give the path of a model"
        ) from exc
