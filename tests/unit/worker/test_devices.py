"""Which GPU there is, told from files, and why there is none that can be used."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from worker import devices
from worker.devices import DeviceNodes, NoDevice, UnusableDevice, device_nodes, find_device


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")


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
def test_a_torch_that_reaches_no_gpu_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "hip", None)
    for cuda, says in ((None, "is a build for CPUs"), ("13.0", "look at the driver")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        with pytest.raises(UnusableDevice, match=says):
            find_device(nodes(tmp_path, "nvidia0"))


@pytest.mark.usefixtures("compiled")
def test_a_gpu_older_than_the_kernels_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(UnusableDevice, match="Tesla T4 is sm_75, kernels need sm_80 or newer"):
        find_device(nodes(tmp_path, "nvidia0"))
    properties = SimpleNamespace(uuid="0e2b4c6d-0000-1111-2222-333344445555")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    found = find_device(tmp_path)
    assert (found.name, found.label) == ("cuda:0", "NVIDIA H200 (sm_90)")
    assert found.uuid == "GPU-0e2b4c6d-0000-1111-2222-333344445555"
