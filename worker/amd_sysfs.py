"""Reads from the kernel how busy, full and hot an AMD GPU is.

The driver shows all of it as files, so nothing has to be installed for it. Why clocks are kept down it does
not say. Knows nothing of metrics or of what runs on a GPU.

Source: Linux kernel, Documentation/gpu/amdgpu: "GPU Power/Thermal Controls and Monitoring", "Memory usage".
"""

from dataclasses import dataclass
from pathlib import Path

from worker.gpu_reading import NoReading, Reading

SYSFS = Path("/sys")
_VENDOR = "0x1002"


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """One card, by the folder in which the kernel shows it."""

    name: str
    uuid: str
    """The address on the PCI bus, `0000:c1:00.0`: the driver's own number is not every card's."""
    driver_version: str
    folder: Path

    def read(self) -> Reading:
        """Look at the card.

        Raises:
            NoReading: It is not there any more.
        """
        if not (self.folder / "vendor").exists():
            raise NoReading(f"the kernel shows no card at {self.uuid} any more")
        busy, memory_busy = self._number("gpu_busy_percent"), self._number("mem_busy_percent")
        power = self._sensor("power1_average", "power1_input")
        limit = self._sensor("power1_cap")
        # The edge of the chip, or where that has no sensor its hottest place.
        degrees = self._sensor("temp1_input", "temp2_input")
        return Reading(
            utilization=None if busy is None else busy / 100,
            memory_utilization=None if memory_busy is None else memory_busy / 100,
            memory_used_bytes=self._number("mem_info_vram_used"),
            memory_total_bytes=self._number("mem_info_vram_total"),
            power_watts=None if power is None else power / 1e6,
            power_limit_watts=None if limit is None else limit / 1e6,
            temperature_celsius=None if degrees is None else degrees // 1000,
            throttled_by=None,
        )

    def _sensor(self, *names: str) -> int | None:
        found = (
            self._number(f"{folder.relative_to(self.folder)}/{name}")
            for name in names
            for folder in sorted(self.folder.glob("hwmon/hwmon*"))
        )
        return next((value for value in found if value is not None), None)

    def _number(self, name: str) -> int | None:
        """Return what a file says; None where this card has none, or does not say now."""
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return None


def find_amd_gpu(pci_address: str | None, label: str, sysfs: Path = SYSFS) -> AmdGpu:
    """Return the card at an address, or where none is known the only one.

    Args:
        pci_address: As in `AmdGpu.uuid`.
        label: Its name for people.
        sysfs: Where the kernel shows devices.

    Raises:
        NoReading: There is no such card, or it is not known which one.
    """
    cards = {}
    for card in sorted(sysfs.glob("class/drm/card*/device")):
        vendor = card / "vendor"
        if vendor.exists() and vendor.read_text().strip() == _VENDOR:
            cards[card.resolve().name] = card
    if not cards:
        raise NoReading(f"the kernel shows no AMD GPU in {sysfs}/class/drm")
    address = next(iter(cards)) if pci_address is None and len(cards) == 1 else pci_address
    if address not in cards:
        which = "which of them computes is not known" if address is None else f"none is at {address}"
        raise NoReading(f"the kernel shows {len(cards)} AMD GPUs, {which}")
    version = sysfs / "module" / "amdgpu" / "version"
    driver = version.read_text().strip() if version.exists() else "amdgpu"
    return AmdGpu(label, address, driver, cards[address])
