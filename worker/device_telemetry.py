"""Metrics of the GPU that a worker computes on, read when somebody asks for them.

Knows names of metrics and NVML; knows nothing of steps. Where there is no NVML, as on AMD, there are none of
these series, which is said once. A GPU that stops answering gives NaN, never its last figures.
"""

import math
from collections.abc import Callable

import structlog

from services.chassis.metrics import Metrics
from worker.devices import Device
from worker.nvml import THROTTLE_REASONS, Gpu, Nvml, NvmlError, Reading, open_nvml

_log = structlog.get_logger()


class DeviceMetrics:
    """Gauges of one GPU."""

    def __init__(self, metrics: Metrics, nvml: Nvml, gpu: Gpu) -> None:
        self._nvml, self._gpu = nvml, gpu
        self._is_lost = False
        info = metrics.gauge("quire_gpu_info", "The GPU that computes", ["name", "uuid", "driver"])
        info.set(1, gpu.name, gpu.uuid, nvml.driver_version)
        self._utilization = metrics.gauge(
            "quire_gpu_utilization_ratio", "Share of the time in which kernels ran, or memory moved", ["of"]
        )
        self._memory = metrics.gauge("quire_gpu_memory_bytes", "Memory of the GPU", ["state"])
        self._power = metrics.gauge("quire_gpu_power_watts", "Power that the GPU draws, and may", ["of"])
        self._temperature = metrics.gauge("quire_gpu_temperature_celsius", "Temperature of the GPU")
        self._throttled = metrics.gauge(
            "quire_gpu_throttled", "1 where this keeps the GPU's clocks down now", ["reason"]
        )
        metrics.before_render(self._refresh)

    def _refresh(self) -> None:
        try:
            self._set(self._nvml.read(self._gpu))
            self._is_lost = False
        except NvmlError as exc:
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
            (self._temperature, "", reading.temperature_celsius if reading else math.nan),
        ):
            if value is not None:
                gauge.set(value, *([label] if label else []))
        reasons = frozenset[str]() if reading is None else reading.throttled_by
        if reasons is not None:
            for reason in THROTTLE_REASONS:
                self._throttled.set(math.nan if reading is None else reason in reasons, reason)


def tell_device(
    metrics: Metrics, device: Device, open_library: Callable[[], Nvml] = open_nvml
) -> DeviceMetrics | None:
    """Add the GPU's metrics; where it cannot be asked, say so once and go on without."""
    try:
        nvml = open_library()
        gpu = next((gpu for gpu in nvml.gpus() if gpu.uuid == device.uuid), None)
        if gpu is not None:
            return DeviceMetrics(metrics, nvml, gpu)
        why = f"NVML does not know {device.label}"
    except NvmlError as exc:
        why = str(exc)
    _log.info("no_gpu_metrics", because=why)
    return None
