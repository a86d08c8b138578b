"""What one process compiled, the next one of the same cache folder finds.

Compiled in children, because kernels are interpreted in this process, and each is a restart.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.kernels.aot import CHIPS

ROOT = Path(__file__).parents[3]

COMPILE = r"""
import sys
import triton
from bench.aot import compiling, tables
from worker.executors import triton_device

def tell(*, cache_hit, **others):
    print("found" if cache_hit else "compiled")

triton.knobs.compilation.listener = tell
triton_device._keep_compiled_kernels()
chip = sys.argv[1]
compiling.compile_kernel(next(iter(tables.kernels("soft_cap_triton", chip))), chip)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_a_process_compiled_is_found_after_a_restart(tmp_path: Path) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TRITON_CACHE_DIR", "TRITON_INTERPRET")
    }
    environment |= {"PYTHONPATH": str(ROOT), "QUIRE_CACHE": str(tmp_path / "first")}

    def start(**others: str) -> str:
        child = subprocess.run(
            [sys.executable, "-c", COMPILE, CHIPS[0]],
            cwd=ROOT,
            env=environment | others,
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == 0, child.stderr[-2000:]
        return child.stdout.strip()

    assert start() == "compiled"
    assert start() == "found"
    assert start(QUIRE_CACHE=str(tmp_path / "other")) == "compiled", "the control"
