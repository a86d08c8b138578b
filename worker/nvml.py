"""Reads NVIDIA's management library: which GPUs there are, how busy, full, hot and throttled they are.

Calls the driver's own `libnvidia-ml.so.1` through ctypes, so nothing has to be installed for it. Knows
nothing of metrics or of what runs on a GPU, and nothing of AMD's.

Source: NVML API reference, "Device Queries" and "NvmlClocksEventReasons".
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from worker.gpu_reading import NoReading, Reading

LIBRARY = "libnvidia-ml.so.1"
THROTTLE_REASONS: Mapping[str, int] = {
    "applications_clocks": 0x2,
    "power_cap": 0x4,
    "hardware": 0x8,
    "sync_boost": 0x10,
    "thermal_software": 0x20,
    "thermal_hardware": 0x40,
    "power_brake": 0x80,
    "display_clock": 0x100,
}
"""What may keep clocks down, by its bit. Being idle (0x1) does so too and is nothing to report."""

_NOT_SUPPORTED = 3
_TEXT_BYTES = 96
_CORE_SENSOR = 0


class NvmlError(NoReading):
    """The library is not here, or the driver does not answer; says which call failed."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of this machine."""

    name: str
    uuid: str
    """`GPU-` and 36 characters."""
    handle: Any


class Nvml:
    """The library, initialised for this process.

    Args:
        library: What ctypes loads; its functions return 0 or an error's number.

    Raises:
        NvmlError: The driver is not loaded, or is older than the library.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._call("nvmlInit_v2")

    @property
    def driver_version(self) -> str:
        return self._text("nvmlSystemGetDriverVersion")

    def gpus(self) -> tuple[Gpu, ...]:
        """Return all of the machine's that this process may see, whatever CUDA_VISIBLE_DEVICES says."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            found.append(
                Gpu(self._text("nvmlDeviceGetName", handle), self._text("nvmlDeviceGetUUID", handle), handle)
            )
        return tuple(found)

    def read(self, gpu: Gpu) -> Reading:
        """Look at one GPU.

        Raises:
            NvmlError: The GPU is lost, or the driver does not answer.
        """
        busy, memory, reasons = _Utilization(), _Memory(), ctypes.c_ulonglong()
        says_busy = self._ask("nvmlDeviceGetUtilizationRates", gpu, ctypes.byref(busy))
        says_memory = self._ask("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory))
        says_reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, ctypes.byref(reasons))
        power = self._number("nvmlDeviceGetPowerUsage", gpu)
        limit = self._number("nvmlDeviceGetEnforcedPowerLimit", gpu)
        return Reading(
            utilization=busy.gpu / 100 if says_busy else None,
            memory_utilization=busy.memory / 100 if says_busy else None,
            memory_used_bytes=memory.used if says_memory else None,
            memory_total_bytes=memory.total if says_memory else None,
            power_watts=None if power is None else power / 1000,
            power_limit_watts=None if limit is None else limit / 1000,
            temperature_celsius=self._number("nvmlDeviceGetTemperature", gpu, ctypes.c_uint(_CORE_SENSOR)),
            throttled_by=frozenset(name for name, bit in THROTTLE_REASONS.items() if reasons.value & bit)
            if says_reasons
            else None,
        )

    def _number(self, function: str, gpu: Gpu, *arguments: Any) -> int | None:
        value = ctypes.c_uint()
        return value.value if self._ask(function, gpu, *arguments, ctypes.byref(value)) else None

    def _text(self, function: str, *arguments: Any) -> str:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(function, *arguments, text, ctypes.c_uint(_TEXT_BYTES))
        return text.value.decode("ascii", "replace")

    def _ask(self, function: str, gpu: Gpu, *arguments: Any) -> bool:
        """Return whether the GPU answers this at all."""
        return self._run(function, gpu.handle, *arguments) != _NOT_SUPPORTED

    def _call(self, function: str, *arguments: Any) -> None:
        if self._run(function, *arguments) == _NOT_SUPPORTED:
            raise NvmlError(f"{function}: not supported")

    def _run(self, function: str, *arguments: Any) -> int:
        call = getattr(self._library, function, None)
        # An older driver's library lacks what came later.
        code: int = _NOT_SUPPORTED if call is None else call(*arguments)
        if code not in (0, _NOT_SUPPORTED):
            raise NvmlError(f"{function} failed with error {code}")
        return code


def open_nvml(load: Callable[[str], Any] = ctypes.CDLL) -> Nvml:
    """Load and initialise the library.

    Raises:
        NvmlError: It is not here, or finds no driver.
    """
    try:
        return Nvml(load(LIBRARY))
    except OSError as exc:
        raise NvmlError(f"no {LIBRARY} here") from exc
