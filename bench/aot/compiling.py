"""Compiles one kernel for one chip without having it, and reads from the result what it needs.

Knows Triton's compiler and how to read what it made; knows nothing of tables or of which kernels there are.
"""

import os
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bench.aot.chips import BY_NAME
from worker.kernels.aot import AotKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one compiled kernel takes of a chip."""

    registers: int
    """32-bit (vector) registers of a thread."""
    spill_bytes: int
    """Bytes of memory that a thread needs for registers it has not got."""
    shared_bytes: int
    num_warps: int
    occupancy: float
    """Resident warps over the most that a unit holds."""

    def as_dict(self) -> dict[str, float]:
        """Return the fields as a table keeps them."""
        return asdict(self)


def compile_kernel(kernel: AotKernel, chip_name: str) -> Resources:
    """Compile and return what the kernel takes. Raises what Triton raises where it does not compile."""
    assert os.environ.get("TRITON_INTERPRET", "0") == "0", "an interpreted kernel cannot be compiled"
    chip = BY_NAME[chip_name]
    names = kernel.function.arg_names
    divisible = [
        index
        for index, name in enumerate(names)
        if name in kernel.aligned or kernel.signature.get(name, "").startswith("*")
    ]
    source = ASTSource(
        kernel.function,
        {name: kernel.signature.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in kernel.constexprs.items()},
        {(index,): [["tt.divisibility", 16]] for index in divisible},
    )
    # Fusing a product into a sum is a rounding less: it is written out where it is wanted, and nowhere else.
    options = {
        "num_warps": kernel.num_warps,
        "num_stages": kernel.num_stages,
        "enable_fp_fusion": False,
        **kernel.options,
    }
    compiled = triton.compile(
        source, target=GPUTarget(chip.backend, chip.arch, chip.warp_size), options=options
    )
    if chip.backend == "cuda":
        registers, spill_bytes = _read_cubin(compiled.asm["cubin"])
    else:
        registers, spill_bytes = _read_amdgcn(compiled.asm["amdgcn"])
    shared = compiled.metadata.shared
    num_warps = compiled.metadata.num_warps
    occupancy = chip.occupancy(registers=registers, shared_bytes=shared, num_warps=num_warps)
    return Resources(
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=shared,
        num_warps=num_warps,
        occupancy=occupancy,
    )


def _read_cubin(cubin: bytes) -> tuple[int, int]:
    """Return registers and spilled bytes of what would be launched: a kernel's stack holds nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ((registers, stack),) = re.findall(r"REG:(\d+) STACK:(\d+)", report)
    return int(registers), int(stack)


def _read_amdgcn(text: str) -> tuple[int, int]:
    """Return vector registers and spilled bytes from the code object's metadata."""
    (registers,) = re.findall(r"\.vgpr_count:\s+(\d+)", text)
    (spilled,) = re.findall(r"\.vgpr_spill_count:\s+(\d+)", text)
    return int(registers), 4 * int(spilled)
