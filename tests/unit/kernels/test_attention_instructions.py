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
for form in ("d128-bf16-bf16", "d128-bf16-i8"):
    for name in (f"decode-{form}", f"ragged-{form}"):
        compiling.compile_kernel(kernels[name], chip)
        assembly = made[-1].asm.get("ptx") or made[-1].asm["amdgcn"]
        names = re.findall(r"(?:wgmma\.mma|mma\.sync|tcgen05\.mma)[\w.:]*|v_mfma\w+", assembly)
        # Scores are the one matrix of rows by keys whose rows are summed.
        ir = made[-1].asm["ttgir"]
        (layout,) = set(re.findall(r"\(tensor<\d+x64xf32, #(\w+)>\) -> tensor", ir))
        (text,) = re.findall(rf"^#{layout} = (.*)$", ir, re.MULTILINE)
        # Of lists of two, the second is along the keys: registers, lanes and warps.
        found[name] = [sorted(set(names)), re.findall(r"(\w+) = \[\d+, (\d+)\]", text)]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.failure("B094")
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="decode tiles have 16 rows: other instructions, or keys over other warps, than ragged tiles have;"
    " once this passes, TritonExecutor may call itself batch-invariant",
)
@pytest.mark.parametrize("chip", CHIPS)
def test_decode_and_ragged_attention_sum_in_one_order(chip: str) -> None:
    """B094: one matrix instruction, and the keys of a row over as many warps, in each form of KV."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [sys.executable, "-c", COMPILE, chip],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(child.stderr[-2000:])
    found = json.loads(child.stdout.splitlines()[-1])
    for form in ("d128-bf16-bf16", "d128-bf16-i8"):
        assert found[f"decode-{form}"] == found[f"ragged-{form}"], form
