"""Metrics of an AMD GPU, read from a tree of files like the kernel's."""

import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.chassis.metrics import Metrics
from tests.unit.worker.test_device_telemetry import series
from worker.amd_sysfs import find_amd_gpu
from worker.device_telemetry import tell_devices
from worker.devices import DeviceMemory
from worker.gpu_reading import NoReading
from worker.nvml import Nvml

ADDRESS = "0000:c1:00.0"


class FakeDevice:
    name, label, compiles = "cuda:0", "AMD Instinct MI300X (gfx942)", True
    uuid, is_amd = None, True

    def __init__(self, pci_address: str | None = ADDRESS) -> None:
        self.pci_address = pci_address

    def memory(self) -> DeviceMemory:
        return DeviceMemory(0, 0)


def never() -> Nvml:
    raise AssertionError("NVIDIA's library knows no AMD GPU")


def add_card(sysfs: Path, number: int, address: str, vendor: str = "0x1002") -> Path:
    """Add a card as the kernel links it: the class points to the device on its bus."""
    device = sysfs / "devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    link = sysfs / "class" / "drm" / f"card{number}"
    link.mkdir(parents=True)
    (link / "device").symlink_to(device)
    return device


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A display of another maker, a card that does nothing, and the one that computes."""
    add_card(tmp_path, 0, "0000:03:00.0", vendor="0x1a03")
    add_card(tmp_path, 1, "0000:05:00.0")
    card = add_card(tmp_path, 2, ADDRESS)
    for name, text in {
        "gpu_busy_percent": "87",
        "mem_busy_percent": "41",
        "mem_info_vram_used": str(3 << 30),
        "mem_info_vram_total": str(192 << 30),
        "hwmon/hwmon7/power1_average": "412500000",
        "hwmon/hwmon7/power1_cap": "750000000",
        "hwmon/hwmon7/temp2_input": "61000",
    }.items():
        (card / name).parent.mkdir(parents=True, exist_ok=True)
        (card / name).write_text(f"{text}\n")
    return tmp_path


def test_the_gpu_that_computes_is_read_at_each_look(sysfs: Path) -> None:
    metrics = Metrics()
    tell_devices(metrics, [FakeDevice()], never, sysfs)
    seen = series(metrics)
    assert seen.pop(
        f'quire_gpu_info{{driver="amdgpu",name="AMD Instinct MI300X (gfx942)",rank="0",uuid="{ADDRESS}"}}'
    )
    assert {name: float(value) for name, value in seen.items()} == {
        'quire_gpu_utilization_ratio{of="kernels",rank="0"}': 0.87,
        'quire_gpu_utilization_ratio{of="memory",rank="0"}': 0.41,
        'quire_gpu_memory_bytes{rank="0",state="used"}': float(3 << 30),
        'quire_gpu_memory_bytes{rank="0",state="total"}': float(192 << 30),
        'quire_gpu_power_watts{of="drawn",rank="0"}': 412.5,
        'quire_gpu_power_watts{of="limit",rank="0"}': 750.0,
        'quire_gpu_temperature_celsius{rank="0"}': 61.0,
    }, "why clocks are kept down it does not say"
    (sysfs / "devices" / ADDRESS / "gpu_busy_percent").write_text("3\n")
    assert series(metrics)['quire_gpu_utilization_ratio{of="kernels",rank="0"}'] == "0.03"


def test_what_a_card_does_not_say_has_no_series(sysfs: Path) -> None:
    card = sysfs / "devices" / ADDRESS
    shutil.rmtree(card / "hwmon")
    (card / "mem_busy_percent").write_text("\n")
    metrics = Metrics()
    tell_devices(metrics, [FakeDevice()], never, sysfs)
    assert {name for name in series(metrics) if "info" not in name} == {
        'quire_gpu_utilization_ratio{of="kernels",rank="0"}',
        'quire_gpu_memory_bytes{rank="0",state="used"}',
        'quire_gpu_memory_bytes{rank="0",state="total"}',
    }


def test_a_lost_card_shows_no_old_figures_and_is_said_once(sysfs: Path) -> None:
    metrics = Metrics()
    tell_devices(metrics, [FakeDevice()], never, sysfs)
    metrics.render()
    shutil.rmtree(sysfs / "devices" / ADDRESS)
    with capture_logs() as logs:
        lost = series(metrics)
        metrics.render()
    assert {value for name, value in lost.items() if "info" not in name} == {"NaN"}
    assert not any("throttled" in name for name in lost)
    assert [log["event"] for log in logs] == ["gpu_gives_no_metrics"]


def test_a_card_that_is_not_known_has_no_series_and_that_is_said_once(sysfs: Path, tmp_path: Path) -> None:
    for device, root, why in (
        (FakeDevice("0000:aa:00.0"), sysfs, "the kernel shows 2 AMD GPUs, none is at 0000:aa:00.0"),
        (FakeDevice(None), sysfs, "the kernel shows 2 AMD GPUs, which of them computes is not known"),
        (FakeDevice(), tmp_path / "no", f"the kernel shows no AMD GPU in {tmp_path / 'no'}/class/drm"),
    ):
        metrics = Metrics()
        with capture_logs() as logs:
            tell_devices(metrics, [device], never, root)
        assert [(log["event"], log["because"]) for log in logs] == [("no_gpu_metrics", why)]
        assert series(metrics) == {}


def test_the_only_card_needs_no_address(sysfs: Path) -> None:
    shutil.rmtree(sysfs / "class" / "drm" / "card1")
    found = find_amd_gpu(None, "AMD", sysfs)
    assert found.uuid == ADDRESS
    shutil.rmtree(sysfs / "devices" / ADDRESS)
    with pytest.raises(NoReading, match=f"no card at {ADDRESS}"):
        found.read()
