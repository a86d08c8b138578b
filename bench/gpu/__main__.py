"""`python -m bench.gpu`: correctness, the table, then a worker over gRPC; see `bench/gpu.sh`.

Everything runs within `--budget-s`: what would be cut is not begun, and says so; the script ends what
overruns. Exit status 0: all that ran is right and reaches its floor, and the worker was not left out; 1:
something is not so; 2: there is no GPU, or nothing to compile with.
"""

import argparse
import os
import sys
import time
from pathlib import Path

_NO_GPU = 2


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description=__doc__)
    parser.add_argument("--budget-s", type=float, default=225.0, help="seconds for everything [225]")
    parser.add_argument("--out", type=Path, help="folder of the results [bench/results]")
    parser.add_argument("--only", default="", help="only parts whose name holds this")
    parser.add_argument(
        "--interpret",
        action="store_true",
        help="run every line at tiny shapes without a GPU; no figure means anything",
    )
    arguments = parser.parse_args()
    began = time.monotonic()
    if arguments.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    try:
        import torch
        import triton  # noqa: F401
    except ModuleNotFoundError as exc:
        print(f"bench/gpu.sh needs torch and triton: {exc}", file=sys.stderr)
        return _NO_GPU
    if not (arguments.interpret or torch.cuda.is_available()):
        print(
            "no GPU here: nothing is measured (--interpret runs every line at tiny shapes)", file=sys.stderr
        )  # fmt: skip
        return _NO_GPU
    from worker.devices import has_c_compiler

    if not (arguments.interpret or has_c_compiler()):
        print("no C compiler here, which Triton needs: install gcc or set CC", file=sys.stderr)
        return _NO_GPU
    from bench.gpu.running import run_all

    run = run_all(
        is_interpreted=arguments.interpret,
        budget_s=arguments.budget_s,
        began=began,
        only=arguments.only,
        folder=arguments.out,
    )
    return 0 if run.is_good or (arguments.interpret and not run.failed) else 1


if __name__ == "__main__":
    sys.exit(main())
