"""Every source of the native executor compiles for every instruction set, with the flags of a worker's start.

Probes run the products and attention of sets that this machine lacks; the rest of the sources is compiled
here. Only what a compiler says and writes is judged: nothing runs.
"""

import subprocess
from pathlib import Path

import pytest

from tests.unit.executors.probe_targets import cross_compiler, instruction_set, need_cross_tools
from worker.executors.native.build import FLAGS, SOURCES
from worker.executors.native.instruction_sets import INSTRUCTION_SETS, InstructionSet, this_cpu

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def compiler_of(entry: InstructionSet) -> list[str]:
    """Return the command of a compiler for the set's machines, or skip by name."""
    if not entry.machines or this_cpu().machine in entry.machines:
        return ["g++", *FLAGS, entry.macro, *entry.flags]
    need_cross_tools()
    return cross_compiler(entry)


@pytest.mark.parametrize("entry", INSTRUCTION_SETS, ids=lambda entry: entry.name)
def test_every_source_compiles_for_every_instruction_set(entry: InstructionSet, tmp_path: Path) -> None:
    command = compiler_of(entry)
    # Zig's command wants to write an object.
    command += ["-fsyntax-only"] if command[0] == "g++" else ["-O0", "-c", "-o", str(tmp_path / "source.o")]
    sources = sorted(SOURCES.glob("*.cc"))
    assert len(sources) > 10
    for source in sources:
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{source.name} for {entry.name}: {done.stderr}"


@pytest.mark.parametrize(
    ("name", "instruction", "register"),
    [
        ("avx512vnni", "vpdpbusd", "%zmm"),
        ("avx2vnni", "vpdpbusd", "%ymm"),
        ("avx2", "vpmaddubsw", "%ymm"),
        ("neon", "sdot", ".16b"),
    ],
)
def test_products_of_codes_use_the_instruction_that_their_set_is_for(
    name: str, instruction: str, register: str, tmp_path: Path
) -> None:
    written = tmp_path / "linear_int8.s"
    command = [*compiler_of(instruction_set(name)), "-S", "-o", str(written)]
    subprocess.run([*command, str(SOURCES / "linear_int8.cc")], check=True)
    products = [line for line in written.read_text().splitlines() if instruction in line.split()]
    assert len(products) > 100
    assert all(register in line for line in products)
