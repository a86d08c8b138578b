"""The committed tables of compiled kernels hold: nothing spills, nothing became worse, on any chip.

Compiled in a child, because kernels are interpreted in this process.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.aot import tables
from bench.aot.compiling import Resources
from worker.kernels.aot import CHIPS

ROOT = Path(__file__).parents[3]

SPILLING = """
import triton
import triton.language as tl
from bench.aot import tables
from bench.aot.compiling import compile_kernel
from dataclasses import replace
from worker.kernels.aot import CHIPS, AotKernel

@triton.jit
def product(x, y, out, steps):
    m, n, k = tl.arange(0, 128), tl.arange(0, 256), tl.arange(0, 32)
    total = tl.zeros([128, 256], tl.float32)
    for step in range(steps):
        left = tl.load(x + m[:, None] * 32 + k[None, :] + step)
        right = tl.load(y + k[:, None] * 256 + n[None, :] + step)
        # Kept apart from the sum, so that a thread has two tiles to hold.
        total = total * tl.dot(left, right) + total
    tl.store(out + m[:, None] * 256 + n[None, :], total)

kernel = AotKernel(
    name="control",
    function=product,
    signature={"x": "*bf16", "y": "*bf16", "out": "*fp32", "steps": "i32"},
    constexprs={},
    num_warps=4,
)
for chip in CHIPS:
    # A thread of AMD's has twice the registers.
    taken = replace(kernel, num_warps=1) if chip == "gfx942" else kernel
    print(*tables.problems("control", chip, compile_kernel(taken, chip)))
"""


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("module", tables.modules())
def test_what_is_compiled_now_is_no_worse_than_the_table(module: str) -> None:
    child = run("-m", "bench.aot", module)
    assert child.returncode == 0, child.stdout + child.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_tile_that_is_too_large_is_seen_to_spill(tmp_path: Path) -> None:
    """The control: a compiler's report that nobody reads right would find nothing anywhere."""
    script = tmp_path / "control.py"
    script.write_text(SPILLING)
    child = run(str(script))
    assert child.returncode == 0, child.stderr[-2000:]
    for line in child.stdout.splitlines():
        assert re.search(r"control on \w+: spills \d+ bytes", line), child.stdout
    assert len(child.stdout.splitlines()) == len(CHIPS)


def test_what_became_worse_is_named_with_both_states() -> None:
    recorded = Resources(registers=128, spill_bytes=0, shared_bytes=0, num_warps=4, occupancy=0.25)
    same = tables.differences("decode", "sm_90", recorded.as_dict(), recorded)
    worse = replace(recorded, registers=168, occupancy=0.1875)
    (line,) = tables.differences("decode", "sm_90", recorded.as_dict(), worse)
    assert not list(same)
    assert line.startswith("decode on sm_90: registers 128 -> 168, occupancy 0.25 -> 0.1875 ({")
    assert "'registers': 128" in line
    assert "'registers': 168" in line
    for name, more in (("registers", 136), ("spill_bytes", 8), ("shared_bytes", 4096)):
        before = recorded.as_dict()[name]
        (line,) = tables.differences(
            "decode",
            "sm_90",
            recorded.as_dict(),
            replace(recorded, **{name: more}),  # type: ignore[arg-type]
        )
        assert line.startswith(f"decode on sm_90: {name} {before} -> {more} ({{"), (
            "even at the same occupancy"
        )
        fewer = {**recorded.as_dict(), name: more}
        assert not list(tables.differences("decode", "sm_90", fewer, recorded))
    assert list(tables.differences("decode", "sm_90", None, recorded)) == [
        "decode on sm_90: not in the table"
    ]
    spilling = replace(recorded, spill_bytes=8, shared_bytes=1 << 20)
    spills, is_too_large = tables.problems("decode", "gfx942", spilling)
    assert spills == "decode on gfx942: spills 8 bytes"
    assert is_too_large == "decode on gfx942: 1048576 bytes of shared memory, the chip has 65536"


def test_every_registered_configuration_has_a_row_for_every_chip() -> None:
    for module in tables.modules():
        committed = tables.read_table(module)["kernels"]
        for chip in CHIPS:
            names = {kernel.name for kernel in tables.kernels(module, chip)}
            assert names == {name for name, rows in committed.items() if chip in rows}, (module, chip)
