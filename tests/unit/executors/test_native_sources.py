"""Every source of the native executor compiles for every instruction set, with the flags of a worker's start.

Probes run the products and attention of sets that this machine lacks; the rest of the sources is compiled
here. Only what a compiler says is judged: nothing runs.
"""

import shutil
import subprocess

import pytest

from worker.executors.native.build import FLAGS, SOURCES
from worker.executors.native.instruction_sets import INSTRUCTION_SETS, InstructionSet, this_cpu

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def compiler_of(entry: InstructionSet) -> str:
    """Return a compiler for the set's machines, or skip by name."""
    is_ours = not entry.machines or this_cpu().machine in entry.machines
    names = {"x86_64": "x86_64-linux-gnu-g++", "aarch64": "aarch64-linux-gnu-g++"}
    wanted = "g++" if is_ours else next(names[machine] for machine in names if machine in entry.machines)
    if shutil.which(wanted) is None:
        pytest.skip(f"{wanted} is not installed")
    return wanted


@pytest.mark.parametrize("entry", INSTRUCTION_SETS, ids=lambda entry: entry.name)
def test_every_source_compiles_for_every_instruction_set(entry: InstructionSet) -> None:
    command = [compiler_of(entry), *FLAGS, entry.macro, *entry.flags, "-fsyntax-only"]
    sources = sorted(SOURCES.glob("*.cc"))
    assert len(sources) > 10
    for source in sources:
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{source.name} for {entry.name}: {done.stderr}"
