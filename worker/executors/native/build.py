"""Compiles the native executor's sources when they are first needed, and keeps the result.

One shared library per instruction set lies in the cache folder under a digest of all that decides its code.
Knows compilers and files; knows nothing of what the library does.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from services.artifacts.model_cache import cache_folder
from services.chassis.fatal import FatalError
from worker.executors.native.instruction_sets import Cpu, InstructionSet, this_cpu

SOURCES = Path(__file__).parent
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-pthread",
    # Rounding is part of the contract: a product is fused with a sum only where the source says so. The other
    # two change no value; they let loops with square roots and choices become vectors.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
)
_JOBS = 2
"""Compilers that run together."""
_REMEDIES = "install g++ (or set CXX), or install the torch executor: pip install 'quire[torch]'"

_log = structlog.get_logger()


class NoCompiler(FatalError):
    """There is no C++ compiler here, or it cannot compile the sources."""


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled library."""

    path: Path
    instruction_set: str
    digest: str
    """16 hex digits of sources, compiler and flags: what decides the bits that it computes."""


def choose(name: str, cpu: Cpu) -> InstructionSet:
    """Return the instruction set called `name`, or for "auto" the best that `cpu` has.

    Raises:
        FatalError: The CPU does not have it.
    """
    supported = cpu.supported()
    for entry in supported:
        if name in ("auto", entry.name):
            return entry
    names = ", ".join(entry.name for entry in supported)
    raise FatalError(f"--instruction-set {name} does not run on this CPU; it has {names}")


def build(
    instruction_set: str = "auto",
    *,
    environment: Mapping[str, str] = os.environ,
    sources: Path = SOURCES,
    cpu: Cpu | None = None,
) -> Built:
    """Return the library for this CPU, compiled now unless it has been before.

    One process at a time compiles a library; the others wait here and find it done.

    Args:
        instruction_set: A name of `INSTRUCTION_SETS`, or "auto" for the best that this CPU has.
        environment: Where CXX and the cache folder are looked up.
        sources: Folder of the `.cc` and `.h` files.
        cpu: The processor to build for; None is this one.

    Raises:
        NoCompiler: There is none, or it fails; the message names the remedies.
        FatalError: The CPU lacks the instruction set, or the cache cannot be written.
    """
    cpu = this_cpu() if cpu is None else cpu
    chosen = choose(instruction_set, cpu)
    compiler = find_compiler(environment)
    flags = (*FLAGS, chosen.macro, *chosen.flags)
    digest = _digest(_version(compiler), *flags, *_texts(sources))
    folder = cache_folder(environment) / "native"
    target = folder / f"{chosen.name}-{digest}-{_digest(cpu.name)[:8]}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{target.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _compile(compiler, flags, sources, target)
    except OSError as exc:
        raise FatalError(
            f"{folder} cannot be written ({exc.strerror or exc}); set QUIRE_CACHE to another folder"
        ) from exc
    return Built(target, chosen.name, digest)


def _compile(compiler: str, flags: tuple[str, ...], sources: Path, target: Path) -> None:
    """Compile every source by itself, link them, and move the library into place in one stroke."""
    started = time.monotonic()
    _log.info("compiling_native_executor", compiler=compiler, library=str(target))
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.stem}.") as name:
        objects = {path: Path(name) / f"{path.stem}.o" for path in sorted(sources.glob("*.cc"))}
        with ThreadPoolExecutor(_JOBS) as pool:
            commands = [[compiler, *flags, "-c", str(path), "-o", str(objects[path])] for path in objects]
            # The first start takes a minute: who waits sees how far it is.
            for done, _ in enumerate(pool.map(_run, commands), 1):
                _log.info("compiled_object", done=done, of=len(commands))
        library = Path(name) / target.name
        _run([compiler, "-shared", "-pthread", *map(str, objects.values()), "-o", str(library)])
        library.replace(target)
    _log.info("compiled_native_executor", seconds=round(time.monotonic() - started, 1))


def find_compiler(environment: Mapping[str, str]) -> str:
    """Return the path of the C++ compiler: `CXX`, else g++.

    Raises:
        NoCompiler: It is not there; the message names the remedies.
    """
    wanted = environment.get("CXX") or "g++"
    found = shutil.which(wanted, path=environment.get("PATH"))
    if found is None:
        raise NoCompiler(f"the native executor needs a C++ compiler and there is no {wanted}: {_REMEDIES}")
    return found


def _version(compiler: str) -> str:
    return _run([compiler, "--version"])


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as exc:
        said = getattr(exc, "stderr", None) or str(exc)
        first = next((line for line in said.splitlines() if "error" in line), said.strip().splitlines()[0])
        raise NoCompiler(f"{command[0]} cannot compile the native executor ({first}): {_REMEDIES}") from exc


def _texts(sources: Path) -> list[str]:
    files = sorted((*sources.glob("*.cc"), *sources.glob("*.h")))
    return [text for path in files for text in (path.name, path.read_text())]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
