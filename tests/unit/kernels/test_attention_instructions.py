"""In which order compiled attention sums: a row has one result only if both kernels sum alike.

Compiled in a child, because kernels are interpreted in this process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.kernels.aot import CHIPS

ROOT = Path(__file__).parents[3]
FORMS = ("d128-bf16-bf16", "d128-bf16-i8", "d256-bf16-bf16", "d256-bf16-i8")

COMPILE = r"""
import json, re, sys
import triton
from bench.aot import compiling, tables

chip = sys.argv[1]
made = []
compile_one = triton.compile

def keep(*args, **options):
    made.append(compile_one(*args, **options))
    return made[-1]

triton.compile = keep
kernels = {kernel.name: kernel for kernel in tables.kernels("paged_attention_triton", chip)}
found = {}
for form in sys.argv[2:]:
    for name in (f"decode-{form}", f"ragged-{form}"):
        compiling.compile_kernel(kernels[name], chip)
        assembly = made[-1].asm.get("ptx") or made[-1].asm["amdgcn"]
        names = re.findall(r"(?:wgmma\.mma|mma\.sync|tcgen05\.mma)[\w.:]*|v_mfma\w+", assembly)
        # A wgmma's n says how many rows or columns it makes, not what an element of them sums.
        instructions = {re.sub(r"m64n\d+", "m64", each) for each in names}
        ir = made[-1].asm["ttgir"]
        # Which numbers of the summed axis an instruction takes; from shared memory in order, as 2 is.
        widths = set(re.findall(r"kWidth = (\d+)", ir)) or {"2"}
        reductions = re.findall(
            r'"tt\.reduce"\(%\w+\) <\{axis = (\d+)[^\n]*\n[^\n]*\n[^\n]*arith\.(\w+)'
            r".*?\(tensor<([\dx]+)xf32", ir, re.DOTALL
        )
        sums = [int(shape.split("x")[int(axis)]) for axis, kind, shape in reductions if kind == "addf"]
        found[name] = [sorted(instructions), sorted(widths), sums]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.failure("B094")
@pytest.mark.parametrize("chip", CHIPS)
def test_decode_and_ragged_attention_sum_in_one_order(chip: str) -> None:
    """B094: one matrix instruction, fed alike, and weights that no layout orders: two are added at a time."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [sys.executable, "-c", COMPILE, chip, *FORMS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(child.stderr[-2000:])
    found = json.loads(child.stdout.splitlines()[-1])
    for form in FORMS:
        assert found[f"decode-{form}"][:2] == found[f"ragged-{form}"][:2], form
    for name, (instructions, _, sums) in found.items():
        assert len(instructions) == 1, name
        assert sums
        assert set(sums) == {2}, name
