"""The native library is compiled once for a machine, by whoever comes first."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.chassis.fatal import FatalError
from worker.executors.native.build import Built, NoCompiler, build, choose
from worker.executors.native.instruction_sets import INSTRUCTION_SETS, Cpu, this_cpu

SOURCE = 'extern "C" int answer() { return 42; }\n'


@dataclass(frozen=True)
class Workshop:
    """Sources, a cache and a compiler that keeps count."""

    folder: Path

    @property
    def sources(self) -> Path:
        return self.folder / "sources"

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "QUIRE_CACHE": str(self.folder / "cache"), "CXX": str(self.compiler)}

    @property
    def compiler(self) -> Path:
        return self.folder / "cxx"

    def num_compilations(self) -> int:
        log = self.folder / "log"
        return log.read_text().count(" -c ") if log.exists() else 0

    def build(self, **options: object) -> Built:
        return build("portable", environment=self.environment, sources=self.sources, **options)  # type: ignore[arg-type]


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    made = Workshop(tmp_path)
    made.sources.mkdir()
    (made.sources / "answer.cc").write_text(SOURCE)
    made.compiler.write_text(f'#!/bin/sh\necho " $* " >> {tmp_path}/log\nexec g++ "$@"\n')
    made.compiler.chmod(0o755)
    return made


def test_a_library_is_compiled_when_first_needed_and_never_again(workshop: Workshop) -> None:
    first, second = workshop.build(), workshop.build()
    assert first == second
    assert ctypes.CDLL(str(first.path)).answer() == 42
    assert workshop.num_compilations() == 1
    assert [path.suffix for path in first.path.parent.iterdir() if not path.name.startswith(".")] == [".so"]


def test_a_first_start_shows_how_far_it_is(workshop: Workshop) -> None:
    (workshop.sources / "question.cc").write_text('extern "C" int question() { return 6 * 9; }\n')
    with capture_logs() as logs:
        workshop.build()
        workshop.build()
    shown = [(log["done"], log["of"]) for log in logs if log["event"] == "compiled_object"]
    assert shown == [(1, 2), (2, 2)]


def test_another_source_instruction_set_or_cpu_is_another_library(workshop: Workshop) -> None:
    first = workshop.build()
    cpu = this_cpu()
    other_cpu = workshop.build(cpu=Cpu(cpu.machine, "another processor", cpu.features))
    assert (other_cpu.path != first.path, other_cpu.digest) == (True, first.digest)
    (workshop.sources / "answer.h").write_text("")
    assert workshop.build().digest != first.digest
    assert workshop.num_compilations() == 3


def test_another_version_of_the_compiler_is_another_library(workshop: Workshop) -> None:
    first = workshop.build()
    plain = workshop.compiler.read_text()
    newer = plain.replace("exec g++", 'case "$1" in --version) echo "g++ 99.1"; exit;; esac\nexec g++')
    workshop.compiler.write_text(newer)
    second = workshop.build()
    assert (second.path != first.path, second.digest != first.digest) == (True, True)
    assert workshop.num_compilations() == 2
    workshop.compiler.write_text(plain)
    assert workshop.build() == first
    assert workshop.num_compilations() == 2


def test_workers_that_start_together_compile_once(workshop: Workshop) -> None:
    with ThreadPoolExecutor(6) as pool:
        built = list(pool.map(lambda _: workshop.build(), range(6)))
    assert len(set(built)) == 1
    assert workshop.num_compilations() == 1


def test_without_a_compiler_one_line_names_both_remedies(workshop: Workshop) -> None:
    environment = {"PATH": str(workshop.folder), "QUIRE_CACHE": str(workshop.folder / "cache")}
    with pytest.raises(
        NoCompiler, match=r"there is no g\+\+: install g\+\+ .* pip install 'quire\[torch\]'"
    ) as raised:
        build("portable", environment=environment, sources=workshop.sources)
    assert "\n" not in str(raised.value)


def test_what_the_compiler_says_is_passed_on_in_one_line(workshop: Workshop) -> None:
    (workshop.sources / "broken.cc").write_text("int f() { return undeclared; }\n")
    with pytest.raises(NoCompiler, match=r"undeclared.*install g\+\+.*quire\[torch\]") as raised:
        workshop.build()
    assert "\n" not in str(raised.value)
    (workshop.sources / "broken.cc").unlink()
    assert workshop.build().path.exists()


def test_a_cache_that_cannot_be_written_is_named(workshop: Workshop) -> None:
    (workshop.folder / "cache").write_text("a file")
    with pytest.raises(FatalError, match=r"cache/native cannot be written .*QUIRE_CACHE"):
        workshop.build()


@pytest.mark.parametrize(
    ("machine", "fields", "best"),
    [
        ("x86_64", "flags : avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni", "avx512vnni"),
        ("x86_64", "flags : avx2 fma f16c avx_vnni avx512f", "avx2vnni"),
        ("x86_64", "flags\t\t: fpu avx2 fma f16c", "avx2"),
        ("x86_64", "flags : avx2", "portable"),
        ("aarch64", "Features : fp asimd asimddp", "neon"),
        ("aarch64", "Features : fp asimd", "portable"),
        ("riscv64", "isa : rv64imafdc", "portable"),
    ],
)
def test_the_best_that_a_cpu_has_is_chosen(
    machine: str, fields: str, best: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    (tmp_path / "cpuinfo").write_text(f"model name : Some CPU\n{fields}\n")
    cpu = this_cpu(tmp_path / "cpuinfo")
    assert cpu.name == "Some CPU"
    assert choose("auto", cpu).name == best
    assert choose("portable", cpu).name == "portable"


def test_an_instruction_set_that_the_cpu_lacks_is_refused_by_name() -> None:
    cpu = Cpu("x86_64", "old", frozenset({"avx2", "fma", "f16c"}))
    for name in ("avx512vnni", "neon", "mmx"):
        with pytest.raises(FatalError, match=rf"--instruction-set {name} .*it has avx2, portable"):
            choose(name, cpu)


def test_every_machine_can_run_something() -> None:
    assert INSTRUCTION_SETS[-1] in Cpu("unheard-of", "", frozenset()).supported()
