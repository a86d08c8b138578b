"""The committed tables: one JSON file beside each module of kernels, and what it means to be worse than one.

Knows files and comparison; knows nothing of compilers.
"""

import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.aot.chips import BY_NAME
from bench.aot.compiling import Resources
from worker.kernels.aot import CHIPS, AotKernel

KERNELS = Path(__file__).parents[2] / "worker" / "kernels"

_MORE_IS_WORSE = ("registers", "spill_bytes", "shared_bytes")

Table = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Configuration -> chip -> field of `Resources` -> value."""


def modules() -> list[str]:
    """Return the names of the modules that register kernels."""
    return sorted(path.stem for path in KERNELS.glob("*_triton.py") if "def aot_kernels(" in path.read_text())


def kernels(module: str, chip: str) -> list[AotKernel]:
    """Return what a module launches on a chip; raises ValueError where two share a name."""
    found: list[AotKernel] = list(importlib.import_module(f"worker.kernels.{module}").aot_kernels(chip))
    names = [kernel.name for kernel in found]
    if len(set(names)) < len(names):
        raise ValueError(f"{module}: kernels share a name: {sorted(names)}")
    return found


def table_path(module: str) -> Path:
    """Return where a module's table is committed."""
    return KERNELS / f"{module}.json"


def read_table(module: str) -> dict[str, Any]:
    """Return a module's committed table with the version it was made with, empty where there is none."""
    path = table_path(module)
    return json.loads(path.read_text()) if path.exists() else {"triton": "", "kernels": {}}


def write_table(module: str, triton_version: str, table: Table) -> None:
    """Replace a module's committed table: one line for each kernel and chip."""
    lines = []
    for name, by_chip in sorted(table.items()):
        rows = [f"      {json.dumps(chip)}: {json.dumps(by_chip[chip])}" for chip in CHIPS if chip in by_chip]
        lines.append(f"    {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n    }")
    text = (
        f'{{\n  "triton": {json.dumps(triton_version)},\n  "kernels": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
    )
    table_path(module).write_text(text)


def problems(name: str, chip: str, resources: Resources) -> Iterator[str]:
    """Yield what no kernel may do: spill, or take more shared memory than a block may have."""
    where = f"{name} on {chip}"
    limit = BY_NAME[chip].block_shared_bytes
    if resources.spill_bytes:
        yield f"{where}: spills {resources.spill_bytes} bytes"
    if resources.shared_bytes > limit:
        yield f"{where}: {resources.shared_bytes} bytes of shared memory, the chip has {limit}"


def differences(name: str, chip: str, recorded: Mapping[str, float] | None, now: Resources) -> Iterator[str]:
    """Yield what became worse than the committed table, or is not in it."""
    where = f"{name} on {chip}"
    if recorded is None:
        yield f"{where}: not in the table"
        return
    found = now.as_dict()
    worse = [name for name in _MORE_IS_WORSE if found[name] > recorded[name]]
    worse += ["occupancy"] if found["occupancy"] < recorded["occupancy"] else []
    if worse:
        changes = ", ".join(f"{name} {recorded[name]} -> {found[name]}" for name in worse)
        yield f"{where}: {changes} ({recorded} -> {found})"
