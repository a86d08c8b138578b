"""Reads what AMD's kernel driver shows of itself: its version, its GPUs, and whether this user may use them.

Files of the kernel's alone, no library of ROCm's. Knows nothing of metrics or of what runs on a GPU.

Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c (`gfx_target_version`: major * 10000 + minor * 100 +
stepping, 0 for a CPU's node).
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AmdDriver:
    """The driver behind `/dev/kfd`."""

    version: str
    """Of the module where it has one of its own, else the kernel's whose part it is."""
    gpus: tuple[str, ...]
    """Chips, such as gfx942; a container may see fewer than there are."""
    may_open: bool
    """Whether this user may compute on them."""


def read_amd_driver(dev: Path = Path("/dev"), sys: Path = Path("/sys")) -> AmdDriver | None:
    """Return what is shown; None without `/dev/kfd`."""
    if not (dev / "kfd").exists():
        return None
    try:
        version = (sys / "module/amdgpu/version").read_text().strip()
    except OSError:
        version = f"of Linux {platform.release()}"
    nodes = sorted((sys / "class/kfd/kfd/topology/nodes").glob("*/properties"), key=_number)
    chips = tuple(chip for chip in map(_chip, nodes) if chip is not None)
    return AmdDriver(version, chips, os.access(dev / "kfd", os.R_OK | os.W_OK))


def _number(properties: Path) -> int:
    return int(properties.parent.name) if properties.parent.name.isdigit() else 0


def _chip(properties: Path) -> str | None:
    """Return a node's chip; None for a CPU, or a GPU that this container may not see."""
    try:
        lines = properties.read_text().splitlines()
    except OSError:
        return None
    values = dict(line.split(maxsplit=1) for line in lines if " " in line)
    target = values.get("gfx_target_version", "0")
    if not target.isdigit() or int(target) == 0:
        return None
    major, rest = divmod(int(target), 10_000)
    return f"gfx{major}{rest // 100:x}{rest % 100:x}"
