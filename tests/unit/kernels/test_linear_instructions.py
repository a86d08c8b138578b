"""What the compilers make of a ladder: rows have one result only if all of its steps multiply alike.

Compiled in a child, because kernels are interpreted in this process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.kernels import linear_tuning
from worker.kernels.aot import CHIPS

ROOT = Path(__file__).parents[3]

COMPILE = r"""
import json, re, sys
import triton
from bench.aot import compiling, tables

chip, kind = sys.argv[1:]
assembly = []
compile_one = triton.compile

def keep(*args, **options):
    compiled = compile_one(*args, **options)
    assembly.append(compiled.asm.get("ptx") or compiled.asm["amdgcn"])
    return compiled

triton.compile = keep
found = {}
for kernel in tables.kernels("linear_triton", chip):
    # Symmetric ones are float16, whose instruction is another.
    if kernel.name.startswith(kind) and not kernel.name.endswith("-symmetric"):
        compiling.compile_kernel(kernel, chip)
        names = re.findall(r"(?:wgmma\.mma|mma\.sync|tcgen05\.mma)[\w.:]*|v_mfma\w+", assembly[-1])
        found[kernel.name] = sorted(set(names))
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.failure("B094")
@pytest.mark.parametrize("kind", ["bf16", "w4a16-g128-bf16", "w8a16-g64", "w8a8-g32"])
@pytest.mark.parametrize("chip", CHIPS)
def test_every_step_of_a_ladder_multiplies_with_one_instruction(chip: str, kind: str) -> None:
    """B094: apart from how many rows of x it takes (n), which no element's sum depends on."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [sys.executable, "-c", COMPILE, chip, kind],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    found = json.loads(child.stdout.splitlines()[-1])
    name = kind.removesuffix("-bf16")
    num_tiles = sum(len(linear_tuning.ladder(chip, name, s)) for s in linear_tuning.shapes(chip, name))
    num_logits = len(linear_tuning.ladder(chip, "bf16")) if kind == "bf16" else 0
    assert len(found) == num_tiles + num_logits
    kinds = {re_sized(name) for names in found.values() for name in names}
    assert len(kinds) == 1, found


def re_sized(instruction: str) -> str:
    """Return a wgmma without its n: of m64n16k16, how many rows of x; other instructions are as they are."""
    head, separator, tail = instruction.partition(".m64n")
    return instruction if not separator else f"{head}.m64k{tail.split('k', 1)[1]}"
