"""The machine on which GPUs are measured, as far as its Python goes: few packages, and those brought along.

A folder like a checkout whose `build/gpu-packages` holds what `bench/gpu.sh bring` would unpack, and a finder
that hides every other installed package in all processes. Not known: other versions, and another Python.
"""

import importlib.metadata
import os
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALLED = ("torch", "triton", "grpcio", "safetensors", "tokenizers", "transformers", "pytest", "numpy")
"""What is there before anything is brought."""

_HIDING = """
import sys
from importlib.machinery import PathFinder

HIDDEN = frozenset({hidden!r})

class Hiding:
    find_distributions = staticmethod(PathFinder.find_distributions)
    invalidate_caches = staticmethod(PathFinder.invalidate_caches)

    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None and name in HIDDEN:
            path = [folder for folder in sys.path if "site-packages" not in folder]
        return PathFinder.find_spec(name, path, target)

sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
"""


def make_bare_machine(folder: Path, *, brings: bool) -> dict[str, str]:
    """Make a checkout in `folder`; return the environment that hides what is not there.

    Args:
        folder: Empty.
        brings: Whether packages have been brought along.
    """
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("build", "bench"):
            (folder / path.name).symlink_to(path)
    # Not a link, for the script goes to the folder above its own.
    (folder / "bench").mkdir()
    for path in (ROOT / "bench").iterdir():
        (folder / "bench" / path.name).symlink_to(path)
    if brings:
        _bring(folder / "build" / "gpu-packages")
    hiding = folder / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(
        _HIDING.format(hidden=sorted(_names_but_of(_with_needs(INSTALLED))))
    )
    return {"PYTHONPATH": str(hiding)}


def _bring(folder: Path) -> None:
    """Lay out the packages of `packages.txt`, each file a link."""
    lines = (ROOT / "bench" / "gpu" / "packages.txt").read_text().splitlines()
    for package in (line for line in lines if not line.startswith("#")):
        for file in importlib.metadata.files(package) or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(os.path.realpath(file.locate()))


def _with_needs(packages: Iterable[str]) -> set[str]:
    """Return the packages with all that they need themselves, extras left out."""
    found: set[str] = set()
    waiting = list(packages)
    while waiting:
        name = waiting.pop()
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if _plain(name) not in found:
            found.add(_plain(name))
            waiting += [_first_word(need) for need in needs if "extra ==" not in need]
    return found


def _names_but_of(packages: set[str]) -> set[str]:
    """Return the top-level names of every installed package that is none of `packages`."""
    return {
        name
        for name, owners in importlib.metadata.packages_distributions().items()
        if not packages & {_plain(owner) for owner in owners}
    }


def _first_word(need: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else " " for c in need).split()[0]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
