"""Metrics of the GPU that a worker computes on, read when somebody asks for them.

NVIDIA's are read through NVML, AMD's from the kernel. Knows names of metrics; knows nothing of steps. Where a
GPU cannot be asked there are none of these series, which is said once; what its maker does not say (AMD: why
clocks are kept down) has none. A GPU that stops answering gives NaN, never its last figures.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from services.chassis.metrics import Gauge, Metrics
from worker.amd_sysfs import SYSFS, find_amd_gpu
from worker.devices import Device
from worker.gpu_reading import NoReading, ReadableGpu, Reading
from worker.nvml import THROTTLE_REASONS, Gpu, Nvml, open_nvml

_log = structlog.get_logger()


class DeviceMetrics:
    """Gauges of one GPU."""

    def __init__(self, metrics: Metrics, gpu: ReadableGpu) -> None:
        self._gpu = gpu
        self._is_lost = self._says_reasons = False
        info = metrics.gauge("quire_gpu_info", "The GPU that computes", ["name", "uuid", "driver"])
        info.set(1, gpu.name, gpu.uuid, gpu.driver_version)
        self._utilization = metrics.gauge(
            "quire_gpu_utilization_ratio", "Share of the time in which kernels ran, or memory moved", ["of"]
        )
        self._memory = metrics.gauge("quire_gpu_memory_bytes", "Memory of the GPU", ["state"])
        self._power = metrics.gauge("quire_gpu_power_watts", "Power that the GPU draws, and may", ["of"])
        self._metrics = metrics
        self._temperature: Gauge | None = None
        """Made when there is something to tell: a gauge without labels shows 0 from its beginning."""
        self._throttled = metrics.gauge(
            "quire_gpu_throttled", "1 where this keeps the GPU's clocks down now", ["reason"]
        )
        metrics.before_render(self._refresh)

    def _refresh(self) -> None:
        try:
            self._set(self._gpu.read())
            self._is_lost = False
        except NoReading as exc:
            if not self._is_lost:
                _log.warning("gpu_gives_no_metrics", because=str(exc))
            self._is_lost = True
            self._set(None)

    def _set(self, reading: Reading | None) -> None:
        """Set every gauge; what a GPU never says has no series."""
        for gauge, label, value in (
            (self._utilization, "kernels", reading.utilization if reading else math.nan),
            (self._utilization, "memory", reading.memory_utilization if reading else math.nan),
            (self._memory, "used", reading.memory_used_bytes if reading else math.nan),
            (self._memory, "total", reading.memory_total_bytes if reading else math.nan),
            (self._power, "drawn", reading.power_watts if reading else math.nan),
            (self._power, "limit", reading.power_limit_watts if reading else math.nan),
        ):
            if value is not None:
                gauge.set(value, label)
        degrees = reading.temperature_celsius if reading else math.nan
        if degrees is not None:
            if self._temperature is None:
                self._temperature = self._metrics.gauge(
                    "quire_gpu_temperature_celsius", "Temperature of the GPU"
                )
            self._temperature.set(degrees)
        reasons = None if reading is None else reading.throttled_by
        self._says_reasons = self._says_reasons or reasons is not None
        if self._says_reasons:
            for reason in THROTTLE_REASONS:
                self._throttled.set(math.nan if reasons is None else reason in reasons, reason)


@dataclass(frozen=True, slots=True)
class _OfNvml:
    """One of NVIDIA's, with the library that reads it."""

    nvml: Nvml
    gpu: Gpu

    @property
    def name(self) -> str:
        return self.gpu.name

    @property
    def uuid(self) -> str:
        return self.gpu.uuid

    @property
    def driver_version(self) -> str:
        return self.nvml.driver_version

    def read(self) -> Reading:
        return self.nvml.read(self.gpu)


def tell_device(
    metrics: Metrics,
    device: Device,
    open_library: Callable[[], Nvml] = open_nvml,
    sysfs: Path = SYSFS,
) -> DeviceMetrics | None:
    """Add the GPU's metrics; where it cannot be asked, say so once and go on without."""
    try:
        gpu = find_amd_gpu(device.pci_address, device.label, sysfs) if device.is_amd else None
        return DeviceMetrics(metrics, gpu or _find_nvidia(device, open_library()))
    except NoReading as exc:
        _log.info("no_gpu_metrics", because=str(exc))
        return None


def _find_nvidia(device: Device, nvml: Nvml) -> _OfNvml:
    for gpu in nvml.gpus():
        if gpu.uuid == device.uuid:
            return _OfNvml(nvml, gpu)
    raise NoReading(f"NVML does not know {device.label}")
