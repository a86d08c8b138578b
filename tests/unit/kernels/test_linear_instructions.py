"""What the compilers make of a ladder: rows have one result only if all of its steps multiply alike.

Compiled in a child, because kernels are interpreted in this process.
"""

import json
import os
import re
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
    if kernel.name.startswith(kind + "-"):
        compiling.compile_kernel(kernel, chip)
        names = re.findall(r"(?:wgmma\.mma|mma\.sync|tcgen05\.mma)[\w.:]*|v_mfma\w+", assembly[-1])
        found[kernel.name] = sorted(set(names))
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.failure("B094")
@pytest.mark.parametrize("kind", ["bf16", "w4a16-g128", "w8a16-g64", "w8a8-g32"])
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
    tiles = [
        tile for shape in linear_tuning.shapes(chip, kind) for tile in linear_tuning.ladder(chip, kind, shape)
    ]
    logits = linear_tuning.ladder(chip, "bf16") if kind == "bf16" else []
    assert len(found) == len(tiles) + sum(not tile.is_parallel for tile in logits)
    kinds = {re_typed(re_sized(name)) for names in found.values() for name in names}
    assert len(kinds) == 1, found


def re_sized(instruction: str) -> str:
    """Return a wgmma without its n: of m64n16k16, how many rows of x; other instructions are as they are."""
    head, separator, tail = instruction.partition(".m64n")
    return instruction if not separator else f"{head}.m64k{tail.split('k', 1)[1]}"


def re_typed(instruction: str) -> str:
    """Return an instruction of bfloat16 as the one of float16, in which other tiles are compiled."""
    return re.sub(r"bf16(_1k)?", "f16", instruction)
