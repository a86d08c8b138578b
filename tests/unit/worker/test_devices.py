"""Which GPU there is, told from files, and why there is none that can be used."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from worker import devices
from worker.devices import DeviceNodes, NoDevice, UnusableDevice, device_nodes, find_device


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("CC", "cc")


def nodes(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], DeviceNodes(0, 0)),
        (["null", "nvidiactl", "nvidia-uvm"], DeviceNodes(0, 0)),
        (["nvidia0", "nvidia1", "nvidia12", "nvidiactl"], DeviceNodes(3, 0)),
        (["dxg"], DeviceNodes(1, 0)),
        (["kfd", "dri"], DeviceNodes(0, 1)),
    ],
)
def test_gpus_are_counted_by_their_nodes(names: list[str], found: DeviceNodes, tmp_path: Path) -> None:
    assert device_nodes(nodes(tmp_path, *names)) == found
    assert found.any == bool(found.nvidia or found.amd)


@pytest.mark.usefixtures("compiled")
def test_a_machine_without_a_gpu_is_told_so_and_not_as_unusable(tmp_path: Path) -> None:
    with pytest.raises(NoDevice, match="there is no GPU here") as raised:
        find_device(tmp_path)
    assert not isinstance(raised.value, UnusableDevice)


@pytest.mark.usefixtures("compiled")
def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_module", lambda name: name != "triton")
    with pytest.raises(UnusableDevice, match=r"no triton: pip install 'quire\[torch,triton\]'"):
        find_device(nodes(tmp_path, "nvidia0"))


@pytest.mark.usefixtures("compiled")
def test_without_a_c_compiler_no_kernel_can_be_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_module", lambda name: True)
    monkeypatch.setattr(devices, "has_c_compiler", lambda: False)
    with pytest.raises(UnusableDevice, match="no C compiler, which Triton needs: install gcc or set CC"):
        find_device(nodes(tmp_path, "nvidia0"))
    monkeypatch.undo()
    assert not devices.has_c_compiler({"PATH": str(tmp_path)})
    assert devices.has_c_compiler({"PATH": str(tmp_path), "CC": "/opt/cc"})
    (tmp_path / "clang").touch(mode=0o755)
    assert devices.has_c_compiler({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("node", "cuda", "hip", "says"),
    [
        ("nvidia0", None, None, "is a build for CPUs: install one for CUDA"),
        ("nvidia0", None, "7.0", "is a build for ROCm: install one for CUDA"),
        ("nvidia0", "13.0", None, "look at the driver"),
        ("kfd", None, None, "is a build for CPUs: install one for ROCm"),
        ("kfd", "13.0", None, "is a build for CUDA: install one for ROCm"),
        ("kfd", None, "7.0", "look at the driver"),
    ],
)
def test_a_torch_that_reaches_no_gpu_says_what_to_do(
    node: str, cuda: str | None, hip: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    with pytest.raises(UnusableDevice, match=says):
        find_device(nodes(tmp_path, node))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("capability", "tiles"), [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90")])
def test_a_gpu_whose_tiles_we_have_is_found(
    capability: tuple[int, int], tiles: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cuda(monkeypatch, capability)
    found = find_device(nodes(tmp_path, "nvidia0"))
    assert (found.name, found.label) == ("cuda:0", f"Some GPU ({tiles})")
    assert found.uuid == "GPU-0e2b4c6d-0000-1111-2222-333344445555"
    assert found.compiles


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("capability", [(7, 5), (12, 0)])
def test_a_gpu_that_no_tile_fits_is_refused_by_name(
    capability: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cuda(monkeypatch, capability)
    with pytest.raises(UnusableDevice, match=rf"Some GPU is sm_{capability[0]}{capability[1]}: kernels have"):
        find_device(nodes(tmp_path, "nvidia0"))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("chip", "is_served"), [("gfx942:sramecc+:xnack-", True), ("gfx1100", False)])
def test_amds_chips_are_told_apart(
    chip: str, is_served: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cuda(monkeypatch, (9, 4), chip)
    if is_served:
        assert find_device(nodes(tmp_path, "kfd")).label == "Some GPU (gfx942)"
        return
    with pytest.raises(UnusableDevice, match="Some GPU is gfx1100"):
        find_device(nodes(tmp_path, "kfd"))


def fake_cuda(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], amd: str | None = None) -> None:
    import torch

    properties = SimpleNamespace(uuid="0e2b4c6d-0000-1111-2222-333344445555", gcnArchName=amd)
    monkeypatch.setattr(torch.version, "hip", None if amd is None else "7.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
