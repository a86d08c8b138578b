"""Says whether this machine has a GPU that the Triton executor runs on, and if not, why.

Looks at device nodes and at what is installed before it imports torch, so that a machine without a GPU never
pays for that. Knows nothing of models; which of several GPUs is meant is said by `CUDA_VISIBLE_DEVICES` (AMD:
`HIP_VISIBLE_DEVICES`) and by nothing here: the first one that is visible.
"""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

INTERPRETER_VARIABLE = "TRITON_INTERPRET"
"""Set to 1, kernels are interpreted on the CPU: for tests."""
_EXTRAS = "pip install 'quire[torch,triton]'"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What the driver says of the whole device, other processes included."""

    free_bytes: int
    total_bytes: int


class Device(Protocol):
    """One device that kernels run on."""

    @property
    def name(self) -> str:
        """torch's: `cuda:0`, or `cpu` where kernels are interpreted."""

    @property
    def label(self) -> str:
        """The product and its chip, for people: `NVIDIA H200 (sm_90)`."""

    @property
    def uuid(self) -> str | None:
        """`GPU-...`, as NVIDIA's management library knows it; None where there is none."""

    @property
    def is_amd(self) -> bool:
        """Whether ROCm drives it."""

    @property
    def pci_address(self) -> str | None:
        """`0000:c1:00.0`; None where torch does not say."""

    @property
    def compiles(self) -> bool:
        """Whether kernels are compiled for it, which takes a while once."""

    def memory(self) -> DeviceMemory: ...

    def peer(self, rank: int) -> "Device":
        """Return what a rank of the same model computes on; this one is rank 0's."""


class NoDevice(Exception):
    """There is no GPU here that kernels run on; the message says why and what to do."""


class UnusableDevice(NoDevice):
    """There is a GPU, and something that it needs is missing."""


@dataclass(frozen=True, slots=True)
class DeviceNodes:
    """GPUs as the kernel's drivers show them."""

    nvidia: int
    """`/dev/nvidia0` and on (WSL: `/dev/dxg` is one)."""
    amd: int
    """1 where `/dev/kfd` is: ROCm's one node for all."""

    @property
    def any(self) -> bool:
        return bool(self.nvidia or self.amd)


def device_nodes(dev: Path = Path("/dev")) -> DeviceNodes:
    """Return what lies in `dev`; asks no driver."""
    numbered = [path for path in dev.glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    return DeviceNodes(len(numbered) or int((dev / "dxg").exists()), int((dev / "kfd").exists()))


def is_interpreted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether kernels are interpreted in this process."""
    return environment.get(INTERPRETER_VARIABLE, "0") == "1"


def has_module(name: str) -> bool:
    """Whether `name` could be imported; nothing is."""
    return importlib.util.find_spec(name) is not None


def has_c_compiler(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether Triton finds what it compiles its launchers with: CC, else gcc or clang."""
    path = environment.get("PATH")
    return "CC" in environment or any(shutil.which(name, path=path) for name in ("gcc", "clang"))


def find_device(dev: Path = Path("/dev")) -> Device:
    """Return the first visible GPU.

    Raises:
        NoDevice: There is none.
        UnusableDevice: There is one, but torch, Triton or its driver does not reach it, or no tiles fit it.
    """
    if is_interpreted():
        raise NoDevice(f"kernels are interpreted here ({INTERPRETER_VARIABLE}=1)")
    nodes = device_nodes(dev)
    if not nodes.any:
        raise NoDevice(f"there is no GPU here: no {dev}/nvidia0 and no {dev}/kfd")
    lacking = [name for name in ("torch", "triton") if not has_module(name)]
    if lacking:
        raise UnusableDevice(f"there is a GPU here, but no {' and no '.join(lacking)}: {_EXTRAS}")
    if not has_c_compiler():
        raise UnusableDevice(
            "there is a GPU here, but no C compiler, which Triton needs: install gcc or set CC"
        )
    from worker.executors.triton_device import first_visible

    return first_visible(nodes)
