"""`python -m bench.aot [--write] [MODULE ...]`: compile the kernels of all modules, or of those named."""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import triton

from bench.aot import tables
from bench.aot.compiling import Resources, compile_kernel
from worker.kernels.aot import CHIPS


def check(module: str, *, write: bool) -> list[str]:
    """Compile all kernels of a module and return what is wrong, one line each.

    Args:
        module: Name of a module in `worker.kernels`.
        write: Whether to replace its committed table; then only spills and shared memory are wrong.
    """
    committed = tables.read_table(module)
    wrong: list[str] = []
    if not write and committed["triton"] != triton.__version__:
        wrong.append(
            f"{module}: table of Triton {committed['triton'] or '(none)'}, this is {triton.__version__}"
        )
    table: dict[str, dict[str, dict[str, float]]] = {}
    with ProcessPoolExecutor() as pool:
        compiled = list(pool.map(partial(compile_module, module), CHIPS))
    for chip, found in zip(CHIPS, compiled, strict=True):
        for name, resources in found.items():
            table.setdefault(name, {})[chip] = resources.as_dict()
            wrong += tables.problems(name, chip, resources)
            if not write:
                recorded = committed["kernels"].get(name, {}).get(chip)
                wrong += tables.differences(name, chip, recorded, resources)
    for name, by_chip in committed["kernels"].items():
        gone = set(by_chip) - set(table.get(name, {}))
        if gone and not write:
            wrong.append(f"{name}: in the table for {sorted(gone)}, but no longer registered")
    if write:
        tables.write_table(module, triton.__version__, table)
    return wrong


def compile_module(module: str, chip: str) -> dict[str, Resources]:
    """Return what every kernel of a module takes of one chip."""
    return {kernel.name: compile_kernel(kernel, chip) for kernel in tables.kernels(module, chip)}


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.aot", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", default=tables.modules())
    parser.add_argument("--write", action="store_true", help="replace the committed tables")
    arguments = parser.parse_args()
    wrong: list[str] = []
    for module in arguments.modules:
        wrong += check(module, write=arguments.write)
    print(
        "\n".join(wrong) if wrong else f"{len(arguments.modules)} modules: nothing spills, nothing is worse"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
