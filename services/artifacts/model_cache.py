"""Owns the folder where fetched models lie, and says whether one of them is whole.

A model is `models/<name>/` with its files and a marker that was written after their digests had been checked.
A file whose size and times still equal the marker's is trusted; any other is hashed again. One of the times
is ctime, which no program can set back. Knows nothing of where models come from.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from services.artifacts.errors import ArtifactError
from services.artifacts.progress import Progress, no_progress

MARKER = "verified.json"
_CHUNK_BYTES = 1 << 22


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the cache folder: `QUIRE_CACHE`, else `$XDG_CACHE_HOME/quire`, else `~/.cache/quire`."""
    if own := environment.get("QUIRE_CACHE"):
        return Path(own).expanduser()
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "quire"


def model_folder(cache: Path, name: str) -> Path:
    """Return where the model `name` lies once fetched."""
    return cache / "models" / name


def hash_file(path: Path, progress: Progress = no_progress, what: str = "verifying") -> str:
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(done, total, what)
    return digest.hexdigest()


def is_fetched(cache: Path, name: str) -> bool:
    """Whether the model has been fetched, whole or damaged since."""
    return (model_folder(cache, name) / MARKER).is_file()


def check_whole(cache: Path, name: str) -> Path:
    """Return the folder of a fetched model after checking its files.

    Raises:
        ArtifactError: A file is missing or is not what was fetched.
    """
    folder = model_folder(cache, name)
    advice = f"fetch it again with `quire pull --force {name}`"
    try:
        files = json.loads((folder / MARKER).read_bytes())
        touched = False
        for file_name, entry in files.items():
            path = folder / file_name
            stat = path.stat()
            if stat.st_size != entry["size"]:
                raise ArtifactError(
                    f"{path}: damaged, {stat.st_size} bytes instead of {entry['size']}; {advice}"
                )
            # A marker of an earlier version has no ctime: its files are hashed once.
            if (stat.st_mtime_ns, stat.st_ctime_ns) != (entry["mtime_ns"], entry.get("ctime_ns")):
                if hash_file(path) != entry["sha256"]:
                    raise ArtifactError(f"{path}: damaged, its SHA-256 is not {entry['sha256']}; {advice}")
                touched = True
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ArtifactError(f"{folder}: damaged ({exc}); {advice}") from exc
    if touched:
        _remark(folder, {file_name: entry["sha256"] for file_name, entry in files.items()})
    return folder


def write_marker(folder: Path, digests: Mapping[str, str]) -> None:
    """Record that the files in `folder` have these SHA-256 digests; call it after checking them."""
    entries = {}
    for file_name, digest in digests.items():
        stat = (folder / file_name).stat()
        entries[file_name] = {
            "size": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "ctime_ns": stat.st_ctime_ns,
            "sha256": digest,
        }
    partial = folder / f".{MARKER}.{os.getpid()}"
    partial.write_text(json.dumps(entries, indent=1))
    partial.replace(folder / MARKER)


def _remark(folder: Path, digests: Mapping[str, str]) -> None:
    """Remember a file's new times; a cache that is read-only is hashed at every start instead."""
    try:
        write_marker(folder, digests)
    except OSError:
        return


def fetch_once(
    cache: Path, name: str, num_bytes: int, fetch: Callable[[Path], None], *, force: bool = False
) -> None:
    """Make `name` present: run `fetch` on an empty folder, which then becomes the model's folder.

    One process at a time fetches a model; the others wait here and find it done. What a killed one left is
    removed.

    Args:
        num_bytes: Room needed on the disk.
        fetch: Fills the folder and writes its marker.
        force: Fetch although the model is here.

    Raises:
        ArtifactError: The cache cannot be written or has too little room, or what `fetch` raises.
    """
    models = cache / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        with (models / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if is_fetched(cache, name) and not force:
                return
            _fetch_into_place(models, name, num_bytes, fetch)
    except OSError as exc:
        what = "is full" if exc.errno == errno.ENOSPC else f"cannot be written ({exc.strerror or exc})"
        raise ArtifactError(f"{cache}: {what}; set QUIRE_CACHE to a writable folder with more room") from exc


def _fetch_into_place(models: Path, name: str, num_bytes: int, fetch: Callable[[Path], None]) -> None:
    partial = models / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    free = shutil.disk_usage(models).free
    if free < num_bytes:
        raise ArtifactError(
            f"{models}: {free >> 20} MiB free, {name} needs {num_bytes >> 20} MiB;"
            " free some or set QUIRE_CACHE to a folder on another disk"
        )
    partial.mkdir()
    try:
        fetch(partial)
        shutil.rmtree(models / name, ignore_errors=True)
        partial.rename(models / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
