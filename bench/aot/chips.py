"""What one compute unit of each chip holds, and how many warps of a kernel fit on it.

Knows limits and arithmetic; knows nothing of Triton.

Source: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"; the LLVM AMDGPU
usage guide on gfx942 and AMD's "MI300 instruction set architecture" for registers and local memory.
"""

from dataclasses import dataclass

from worker.kernels.aot import CHIPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One target. A *unit* is a streaming multiprocessor or a compute unit."""

    backend: str
    arch: int | str
    warp_size: int
    block_shared_bytes: int
    """Shared memory that one thread block may have."""
    unit_shared_bytes: int
    reserved_shared_bytes: int
    """Taken by the system for each resident block."""
    unit_registers: int
    """32-bit registers of a unit."""
    register_granule: int
    """Registers of a warp are allocated in multiples of this."""
    unit_warps: int
    unit_blocks: int

    def occupancy(self, *, registers: int, shared_bytes: int, num_warps: int) -> float:
        """Return resident warps over the most that a unit holds, for blocks of `num_warps` warps.

        Worked number: sm_90, 128 registers, 100 KiB, 4 warps: registers allow 4 blocks, shared memory 2, so 8
        of 64 warps: 0.125.
        """
        of_warp = _round_up(max(registers, 1) * self.warp_size, self.register_granule)
        by_registers = self.unit_registers // of_warp // num_warps
        by_shared = self.unit_shared_bytes // max(shared_bytes + self.reserved_shared_bytes, 1)
        blocks = min(by_registers, by_shared, self.unit_warps // num_warps, self.unit_blocks)
        return blocks * num_warps / self.unit_warps


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule


def _cuda(arch: int, block_kib: int, unit_kib: int) -> Chip:
    return Chip(
        backend="cuda",
        arch=arch,
        warp_size=32,
        block_shared_bytes=block_kib << 10,
        unit_shared_bytes=unit_kib << 10,
        reserved_shared_bytes=1 << 10,
        unit_registers=65536,
        register_granule=256,
        unit_warps=64,
        unit_blocks=32,
    )


BY_NAME = {
    "sm_80": _cuda(80, 163, 164),
    "sm_90": _cuda(90, 227, 228),
    "sm_100": _cuda(100, 227, 228),
    "gfx942": Chip(
        backend="hip",
        arch="gfx942",
        warp_size=64,
        block_shared_bytes=64 << 10,
        unit_shared_bytes=64 << 10,
        reserved_shared_bytes=0,
        unit_registers=4 * 512 * 64,  # 4 SIMDs of 512 vector registers, 64 lanes wide
        register_granule=8 * 64,
        unit_warps=32,
        unit_blocks=16,
    ),
}
assert tuple(BY_NAME) == CHIPS
