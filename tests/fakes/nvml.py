"""A stand-in for `libnvidia-ml.so.1`: the functions that are called, writing through the given pointers.

Knows the library's calling convention (0 or an error's number, results by pointer), and says what it is told.
"""

from typing import Any

NOT_SUPPORTED, NOT_LOADED, LOST = 3, 9, 15
UUID = "GPU-0e2b4c6d-0000-1111-2222-333344445555"


class FakeNvml:
    """Two GPUs: an idle T4 and the one that tests read."""

    def __init__(self) -> None:
        self.init_code = 0
        self.lost = False
        self.computing = {101}
        """Handles that may be read."""
        self.silent: set[str] = set()
        """Functions that answer `not supported`."""
        self.utilization, self.memory_utilization = 87, 41
        self.used, self.total = 3 << 30, 140 << 30
        self.milliwatts, self.limit_milliwatts = 412_500, 700_000
        self.temperature = 61
        self.reasons = 0x1 | 0x4 | 0x20

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__").get("silent", ())
        if name in own:
            return lambda *arguments: NOT_SUPPORTED
        return object.__getattribute__(self, name)

    def nvmlInit_v2(self) -> int:
        return self.init_code

    def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:
        return _write(text, size, "580.65.06")

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        return _set(count, 2)

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        return _set(handle, 100 + index.value)

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> int:
        return _write(text, size, {100: "Tesla T4", 101: "NVIDIA H200"}[handle.value])

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: Any) -> int:
        return _write(text, size, {100: "GPU-other", 101: UUID}[handle.value])

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        rates._obj.gpu, rates._obj.memory = self.utilization, self.memory_utilization
        return self._code(handle)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.used = self.total, self.used
        memory._obj.free = self.total - self.used
        return self._code(handle)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, reasons: Any) -> int:
        return _set(reasons, self.reasons) or self._code(handle)

    def nvmlDeviceGetPowerUsage(self, handle: Any, milliwatts: Any) -> int:
        return _set(milliwatts, self.milliwatts) or self._code(handle)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, milliwatts: Any) -> int:
        return _set(milliwatts, self.limit_milliwatts) or self._code(handle)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, degrees: Any) -> int:
        assert sensor.value == 0
        return _set(degrees, self.temperature) or self._code(handle)

    def _code(self, handle: Any) -> int:
        assert handle.value in self.computing, "the GPU that computes is read and no other"
        return LOST if self.lost else 0


def _set(pointer: Any, value: int) -> int:
    pointer._obj.value = value
    return 0


def _write(text: Any, size: Any, value: str) -> int:
    assert len(value) < size.value
    text.value = value.encode()
    return 0
