"""The instruction sets that the native executor is compiled for, and which of them a CPU has.

Knows names of CPU features and compiler flags; runs nothing.
"""

import platform
from dataclasses import dataclass
from pathlib import Path

_X86 = frozenset({"x86_64", "AMD64"})
_ARM = frozenset({"aarch64", "arm64"})


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One way to compile the sources."""

    name: str
    machines: frozenset[str]
    """Values of `platform.machine()`; empty is any."""
    features: frozenset[str]
    """Names in /proc/cpuinfo that a CPU must have."""
    flags: tuple[str, ...]
    """Of the compiler."""

    @property
    def macro(self) -> str:
        """What tells the sources which one it is."""
        return f"-DQUIRE_ISA_{self.name.upper()}"


_AVX2_FEATURES = frozenset({"avx2", "fma", "f16c"})
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")

INSTRUCTION_SETS = (
    InstructionSet(
        "avx512vnni",
        _X86,
        _AVX2_FEATURES | {*_AVX512, "avx512_vnni"},
        (*_AVX2_FLAGS, *(f"-m{feature}" for feature in _AVX512), "-mavx512vnni"),
    ),
    InstructionSet("avx2vnni", _X86, _AVX2_FEATURES | {"avx_vnni"}, (*_AVX2_FLAGS, "-mavxvnni")),
    InstructionSet("avx2", _X86, _AVX2_FEATURES, _AVX2_FLAGS),
    InstructionSet("neon", _ARM, frozenset({"asimddp"}), ("-march=armv8.2-a+dotprod",)),
    InstructionSet("portable", frozenset(), frozenset(), ()),
)
"""Best first."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor of this machine."""

    machine: str
    name: str
    features: frozenset[str]

    def can_run(self, instruction_set: InstructionSet) -> bool:
        """Whether code for that instruction set runs here."""
        fits = not instruction_set.machines or self.machine in instruction_set.machines
        return fits and instruction_set.features <= self.features

    def supported(self) -> tuple[InstructionSet, ...]:
        """Return what runs here, best first; never empty."""
        return tuple(entry for entry in INSTRUCTION_SETS if self.can_run(entry))


def this_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """Read the processor's name and features."""
    machine = platform.machine()
    if platform.system() == "Darwin" and machine in _ARM:
        # Every Apple processor has the dot product, and none of them has this file.
        return Cpu(machine, platform.processor(), frozenset({"asimddp"}))
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return Cpu(machine, platform.processor(), frozenset())
    fields = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = fields.get("model name") or fields.get("cpu part", "")
    return Cpu(machine, name, frozenset((fields.get("flags") or fields.get("features", "")).split()))
