"""Metrics of a GPU, read from a stand-in of NVIDIA's library."""

import ctypes

import pytest
from structlog.testing import capture_logs

from services.chassis.metrics import Metrics
from tests.fakes.nvml import NOT_LOADED, UUID, FakeNvml
from worker.device_telemetry import tell_devices
from worker.devices import DeviceMemory
from worker.nvml import Nvml, NvmlError, open_nvml


class FakeDevice:
    name, label, compiles = "cuda:0", "NVIDIA H200 (sm_90)", True
    is_amd, pci_address = False, None

    def __init__(self, uuid: str | None = UUID) -> None:
        self.uuid = uuid

    def memory(self) -> DeviceMemory:
        return DeviceMemory(0, 0)


def series(metrics: Metrics) -> dict[str, str]:
    lines = (line.rpartition(" ") for line in metrics.render().decode().splitlines())
    return {name: value for name, _, value in lines if name.startswith("quire_gpu")}


def test_the_gpu_that_computes_is_read_at_each_look() -> None:
    library, metrics = FakeNvml(), Metrics()
    tell_devices(metrics, [FakeDevice()], lambda: Nvml(library))
    seen = series(metrics)
    assert (
        seen.pop(f'quire_gpu_info{{driver="580.65.06",name="NVIDIA H200",rank="0",uuid="{UUID}"}}') == "1.0"
    )
    throttled = {name.split('"')[3]: value for name, value in seen.items() if "throttled" in name}
    assert {reason for reason, value in throttled.items() if value == "1.0"} == {
        "power_cap",
        "thermal_software",
    }
    assert len(throttled) == 8
    assert {name: float(value) for name, value in seen.items() if "throttled" not in name} == {
        'quire_gpu_utilization_ratio{of="kernels",rank="0"}': 0.87,
        'quire_gpu_utilization_ratio{of="memory",rank="0"}': 0.41,
        'quire_gpu_memory_bytes{rank="0",state="used"}': float(3 << 30),
        'quire_gpu_memory_bytes{rank="0",state="total"}': float(140 << 30),
        'quire_gpu_power_watts{of="drawn",rank="0"}': 412.5,
        'quire_gpu_power_watts{of="limit",rank="0"}': 700.0,
        'quire_gpu_temperature_celsius{rank="0"}': 61.0,
    }
    library.utilization, library.reasons = 3, 0x1
    seen = series(metrics)
    assert seen['quire_gpu_utilization_ratio{of="kernels",rank="0"}'] == "0.03"
    assert seen['quire_gpu_throttled{rank="0",reason="power_cap"}'] == "0.0"


def test_what_a_gpu_does_not_say_has_no_series() -> None:
    library, metrics = FakeNvml(), Metrics()
    library.silent = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetCurrentClocksThrottleReasons"}
    tell_devices(metrics, [FakeDevice()], lambda: Nvml(library))
    names = {name.partition("{")[0] for name in series(metrics)}
    assert names == {
        "quire_gpu_info",
        "quire_gpu_memory_bytes",
        "quire_gpu_power_watts",
        "quire_gpu_temperature_celsius",
    }


def test_a_lost_gpu_shows_no_old_figures_and_is_said_once() -> None:
    library, metrics = FakeNvml(), Metrics()
    tell_devices(metrics, [FakeDevice()], lambda: Nvml(library))
    metrics.render()
    library.lost = True
    with capture_logs() as logs:
        lost = series(metrics)
        metrics.render()
    assert {value for name, value in lost.items() if "info" not in name} == {"NaN"}
    assert [log["event"] for log in logs] == ["gpu_gives_no_metrics"]
    library.lost = False
    assert "NaN" not in series(metrics).values()


def test_without_the_library_there_are_no_series_and_that_is_said_once() -> None:
    def missing(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    metrics = Metrics()
    with capture_logs() as logs:
        tell_devices(metrics, [FakeDevice(), FakeDevice()], lambda: open_nvml(missing))
    assert [(log["event"], log["because"]) for log in logs] == [
        ("no_gpu_metrics", "no libnvidia-ml.so.1 here")
    ]
    assert series(metrics) == {}


@pytest.mark.parametrize("uuid", [None, "GPU-elsewhere"])
def test_a_device_that_the_library_does_not_know_has_no_series(uuid: str | None) -> None:
    metrics = Metrics()
    with capture_logs() as logs:
        tell_devices(metrics, [FakeDevice(uuid)], lambda: Nvml(FakeNvml()))
    assert logs[0]["because"] == "NVML does not know NVIDIA H200 (sm_90)"
    assert series(metrics) == {}


def test_a_driver_that_is_not_loaded_is_named_by_the_call_that_failed() -> None:
    library = FakeNvml()
    library.init_code = NOT_LOADED
    with pytest.raises(NvmlError, match="nvmlInit_v2 failed with error 9"):
        open_nvml(lambda name: library)


def test_structures_are_as_wide_as_the_librarys() -> None:
    from worker.nvml import _Memory, _Utilization

    assert (ctypes.sizeof(_Utilization), ctypes.sizeof(_Memory)) == (8, 24)


def test_every_rank_has_its_own_series() -> None:
    library, metrics = FakeNvml(), Metrics()
    library.computing = {100, 101}
    tell_devices(metrics, [FakeDevice(), FakeDevice("GPU-other")], lambda: Nvml(library))
    seen = series(metrics)
    assert {name for name in seen if "celsius" in name} == {
        f'quire_gpu_temperature_celsius{{rank="{rank}"}}' for rank in (0, 1)
    }
    names = {name.split('name="')[1].split('"')[0]: name for name in seen if "info" in name}
    assert 'rank="1"' in names["Tesla T4"]
