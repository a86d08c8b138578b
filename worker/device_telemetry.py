"""Metrics of the GPUs that a worker computes on, read when somebody asks for them.

NVIDIA's are read through NVML, AMD's from the kernel. Knows names of metrics; knows nothing of steps. Where a
GPU cannot be asked there are none of these series, which is said once; what its maker does not say (AMD: why
clocks are kept down) has none. A GPU that stops answering gives NaN, never its last figures.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from services.chassis.metrics import Metrics
from worker.amd_sysfs import SYSFS, find_amd_gpu
from worker.devices import Device
from worker.gpu_reading import NoReading, ReadableGpu, Reading
from worker.nvml import THROTTLE_REASONS, Gpu, Nvml, open_nvml

_log = structlog.get_logger()


class _Gauges:
    """Gauges of all GPUs that one worker computes on, by rank."""

    def __init__(self, metrics: Metrics) -> None:
        self.info = metrics.gauge(
            "quire_gpu_info", "The GPU that computes", ["name", "uuid", "driver", "rank"]
        )
        self.utilization = metrics.gauge(
            "quire_gpu_utilization_ratio",
            "Share of the time in which kernels ran, or memory moved",
            ["of", "rank"],
        )
        self.memory = metrics.gauge("quire_gpu_memory_bytes", "Memory of the GPU", ["state", "rank"])
        self.power = metrics.gauge(
            "quire_gpu_power_watts", "Power that the GPU draws, and may", ["of", "rank"]
        )
        self.temperature = metrics.gauge("quire_gpu_temperature_celsius", "Temperature of the GPU", ["rank"])
        self.throttled = metrics.gauge(
            "quire_gpu_throttled", "1 where this keeps the GPU's clocks down now", ["reason", "rank"]
        )


class DeviceMetrics:
    """What the gauges say of one rank's GPU."""

    def __init__(self, gauges: _Gauges, gpu: ReadableGpu, rank: int) -> None:
        self._gauges, self._gpu, self._rank = gauges, gpu, str(rank)
        self._is_lost = self._says_reasons = False
        gauges.info.set(1, gpu.name, gpu.uuid, gpu.driver_version, self._rank)

    def refresh(self) -> None:
        """Look at the GPU and set its gauges."""
        try:
            self._set(self._gpu.read())
            self._is_lost = False
        except NoReading as exc:
            if not self._is_lost:
                _log.warning("gpu_gives_no_metrics", rank=self._rank, because=str(exc))
            self._is_lost = True
            self._set(None)

    def _set(self, reading: Reading | None) -> None:
        """Set every gauge; what a GPU never says has no series."""
        gauges, rank = self._gauges, self._rank
        for gauge, labels, value in (
            (gauges.utilization, ["kernels"], reading.utilization if reading else math.nan),
            (gauges.utilization, ["memory"], reading.memory_utilization if reading else math.nan),
            (gauges.memory, ["used"], reading.memory_used_bytes if reading else math.nan),
            (gauges.memory, ["total"], reading.memory_total_bytes if reading else math.nan),
            (gauges.power, ["drawn"], reading.power_watts if reading else math.nan),
            (gauges.power, ["limit"], reading.power_limit_watts if reading else math.nan),
            (gauges.temperature, [], reading.temperature_celsius if reading else math.nan),
        ):
            if value is not None:
                gauge.set(value, *labels, rank)
        reasons = None if reading is None else reading.throttled_by
        self._says_reasons = self._says_reasons or reasons is not None
        if self._says_reasons:
            for reason in THROTTLE_REASONS:
                gauges.throttled.set(math.nan if reasons is None else reason in reasons, reason, rank)


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


def tell_devices(
    metrics: Metrics,
    devices: Sequence[Device],
    open_library: Callable[[], Nvml] = open_nvml,
    sysfs: Path = SYSFS,
) -> None:
    """Add the metrics of the ranks' GPUs, in their order; why one cannot be asked is said once."""
    found: dict[int, ReadableGpu] = {}
    reasons: dict[str, None] = {}
    for rank, device in enumerate(devices):
        try:
            if device.is_amd:
                found[rank] = find_amd_gpu(device.pci_address, device.label, sysfs)
            else:
                found[rank] = _find_nvidia(device, open_library())
        except NoReading as exc:
            reasons[str(exc)] = None
    for reason in reasons:
        _log.info("no_gpu_metrics", because=reason)
    if found:
        gauges = _Gauges(metrics)
        for rank, gpu in found.items():
            metrics.before_render(DeviceMetrics(gauges, gpu, rank).refresh)


def _find_nvidia(device: Device, nvml: Nvml) -> _OfNvml:
    for gpu in nvml.gpus():
        if gpu.uuid == device.uuid:
            return _OfNvml(nvml, gpu)
    raise NoReading(f"NVML does not know {device.label}")
