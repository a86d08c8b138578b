"""What can be known of a GPU while it works, whoever made it.

Knows nothing of how it is read (`nvml`, `amd_sysfs`) or of what it is told as.
"""

from dataclasses import dataclass
from typing import Protocol


class NoReading(Exception):
    """A GPU cannot be asked, or does not answer; says what was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at one GPU. None: this GPU (or its partition) does not say."""

    utilization: float | None
    """Share of the last sample period in which a kernel ran, 0 to 1."""
    memory_utilization: float | None
    """Share of it in which memory was read or written."""
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    power_limit_watts: float | None
    temperature_celsius: int | None
    throttled_by: frozenset[str] | None
    """Of `nvml.THROTTLE_REASONS`."""


class ReadableGpu(Protocol):
    """One GPU that can be looked at again and again."""

    @property
    def name(self) -> str: ...

    @property
    def uuid(self) -> str:
        """Its maker's name of this one."""

    @property
    def driver_version(self) -> str: ...

    def read(self) -> Reading:
        """Look at it.

        Raises:
            NoReading: It is lost, or the driver does not answer.
        """
