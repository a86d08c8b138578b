"""What the kernel shows of AMD's driver, from files like its own."""

import os
from pathlib import Path

import pytest

from worker.amd_driver import AmdDriver, read_amd_driver


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.12.12\n")
    for number, target in ((0, 0), (1, 90402), (2, 110000), (10, 90010)):
        node = tmp_path / "sys/class/kfd/kfd/topology/nodes" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count 304\ngfx_target_version {target}\n")
    return tmp_path


def read(machine: Path) -> AmdDriver | None:
    return read_amd_driver(machine / "dev", machine / "sys")


def test_version_and_chips_are_the_kernels_own_and_cpus_are_none(machine: Path) -> None:
    assert read(machine) == AmdDriver("6.12.12", ("gfx942", "gfx1100", "gfx90a"), may_open=True)


def test_a_driver_that_is_part_of_the_kernel_has_the_kernels_version(machine: Path) -> None:
    (machine / "sys/module/amdgpu/version").unlink()
    found = read(machine)
    assert found is not None
    assert found.version == f"of Linux {os.uname().release}"


def test_a_container_that_is_shown_no_gpu_is_told_so(machine: Path) -> None:
    for path in (machine / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        path.write_text("gfx_target_version nonsense\nno-value\n")
    found = read(machine)
    assert found is not None
    assert found.gpus == ()


def test_who_may_not_open_the_node_is_told_so(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = read(machine)
    assert found is not None
    assert not found.may_open


def test_without_its_node_there_is_no_driver(machine: Path) -> None:
    (machine / "dev/kfd").unlink()
    assert read(machine) is None
