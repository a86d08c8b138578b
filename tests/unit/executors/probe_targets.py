"""Where native code can be tried out: what this machine runs, and what it can only imitate.

AVX512 and VNNI instructions are emulated by SIMDe's headers, NEON code is cross-compiled for qemu. Both are
slow, and skipped by name where they are not installed. Knows compilers; knows nothing of what is compiled.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from worker.executors.native.build import FLAGS, SOURCES
from worker.executors.native.instruction_sets import INSTRUCTION_SETS, InstructionSet, this_cpu

_EMULATION = Path(__file__).parent / "native_checks" / "emulate_x86.h"
_BY_NAME = {entry.name: entry for entry in INSTRUCTION_SETS}


@dataclass(frozen=True)
class Target:
    """One way to compile the sources and run the result."""

    instruction_set: InstructionSet
    compiler: str = "g++"
    flags: Sequence[str] = field(default=())
    """Beside the product's own; instead of the instruction set's where it is emulated."""
    runner: Sequence[str] = ()
    """What runs the program, if it does not run by itself."""
    is_emulated: bool = False

    @property
    def name(self) -> str:
        return self.instruction_set.name + ("-emulated" if self.is_emulated else "")

    def missing(self) -> str | None:
        """Say what is not installed here."""
        for program in (self.compiler, *self.runner[:1]):
            if shutil.which(program) is None:
                return f"no {program} here"
        if "-include" in self.flags and not this_cpu().can_run(_BY_NAME["avx2"]):
            return "SIMDe is used on top of AVX2, which this CPU lacks"
        if "-include" in self.flags and not _has_simde():
            return "no SIMDe headers here (libsimde-dev)"
        return None

    def compile(self, folder: Path, sources: Sequence[Path]) -> list[str]:
        """Compile a program of these files and return the command that runs it."""
        program = folder / f"{sources[0].stem}-{self.name}"
        own = () if "-include" in self.flags else self.instruction_set.flags
        options = [*FLAGS, self.instruction_set.macro, *own, *self.flags, f"-I{SOURCES}"]
        subprocess.run([self.compiler, *options, *map(str, sources), "-o", str(program)], check=True)
        return [*self.runner, str(program)]


def _has_simde() -> bool:
    command = ["g++", "-E", "-x", "c++", "-mavx2", "-include", "simde/x86/avx512.h", "/dev/null"]
    return subprocess.run(command, capture_output=True).returncode == 0


_X86 = ("-include", str(_EMULATION), "-mavx2", "-mfma", "-mf16c", "-Wno-psabi")
EMULATED = (
    Target(_BY_NAME["avx512vnni"], flags=_X86, is_emulated=True),
    Target(_BY_NAME["avx2vnni"], flags=_X86, is_emulated=True),
    Target(
        _BY_NAME["neon"],
        compiler="aarch64-linux-gnu-g++",
        flags=("-static",),
        runner=("qemu-aarch64", "-cpu", "max"),
        is_emulated=True,
    ),
)


def target_params() -> list[object]:
    """Return every target as a parameter: slow where emulated, skipped where something is missing."""
    own = [Target(entry) for entry in this_cpu().supported()]
    params: list[object] = [pytest.param(target, id=target.name) for target in own]
    for target in EMULATED:
        reason = target.missing()
        marks = [pytest.mark.slow, *([pytest.mark.skip(reason=reason)] if reason else [])]
        params.append(pytest.param(target, id=target.name, marks=marks))
    return params
