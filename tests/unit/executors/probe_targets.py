"""Compiles small programs around native sources: for this machine, and for those that it can only imitate.

AVX512 and VNNI instructions are emulated by SIMDe's headers; NEON code is cross-compiled and run by qemu.
Both are slow, and skipped by name where they are not installed. Knows compilers; knows nothing of what is
compiled.
"""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from worker.executors.native.build import FLAGS, SOURCES, build
from worker.executors.native.instruction_sets import INSTRUCTION_SETS, this_cpu

_EMULATED_X86 = Path(__file__).parent / "native_checks" / "emulate_x86.h"
_AARCH64 = ("aarch64-linux-gnu-g++", "qemu-aarch64")

PROGRAMS = [
    *(entry.name for entry in this_cpu().supported()),
    *(
        pytest.param(f"emulated-{name}", marks=pytest.mark.slow)
        for name in ("avx512vnni", "avx2vnni", "neon")
    ),
]
"""What `probe_command` takes: all that this machine can run, and in the slow pass all that it can emulate."""


def probe_command(folder: Path, name: str, probe: Path, sources: Sequence[str]) -> list[str]:
    """Return the command that runs a probe, made in `folder` unless it is there.

    For this machine the probe is linked with the library that a worker loads. For others it is compiled with
    the sources, for an emulator or with emulated instructions; without those tools the test is skipped.

    Args:
        probe: The program's own source.
        sources: Of the native executor: what the probe uses.
    """
    program = folder / f"{probe.stem}-{name}"
    target = name.removeprefix("emulated-")
    if target == name:
        library = build(name).path
        options = ["g++", "-std=c++17", "-O1", f"-Wl,-rpath,{library.parent}"]
        return [_compiled(program, options, str(probe), str(library))]
    (entry,) = (entry for entry in INSTRUCTION_SETS if entry.name == target)
    inputs = [str(probe), *(str(SOURCES / source) for source in sources)]
    if target == "neon":
        compiler, emulator = (_tool(tool) for tool in _AARCH64)
        options = [compiler, "-static", *FLAGS, entry.macro, *entry.flags]
        return [emulator, _compiled(program, options, *inputs)]
    if platform.machine() != "x86_64" or not Path("/usr/include/simde").is_dir():
        pytest.skip("emulating x86 instructions takes an x86-64 machine and SIMDe's headers")
    # Emulated, the products are a thousand loops: optimising them takes longer than running them.
    emulated = ["-O1", "-mavx2", "-mfma", "-mf16c", "-Wno-psabi", "-include", str(_EMULATED_X86)]
    return [_compiled(program, ["g++", *FLAGS, entry.macro, *emulated], *inputs)]


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def _compiled(program: Path, options: Sequence[str], *inputs: str) -> str:
    if not program.exists():
        subprocess.run([*options, f"-I{SOURCES}", *inputs, "-o", str(program)], check=True)
    return str(program)
