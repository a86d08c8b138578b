"""The device that Triton launches on, as torch and its driver show it.

Knows torch's names, memory and errors; knows nothing of plans, batches or of who chose this executor.
"""

import os
from collections.abc import Sequence

import torch

from services.artifacts.artifact import ModelArtifact
from services.artifacts.model_cache import cache_folder
from services.chassis.fatal import FatalError
from services.domain.kv_layout import KvFormat
from worker.devices import Device, DeviceMemory, DeviceNodes, UnusableDevice
from worker.executors.base import StepLimits
from worker.executors.torch_ranks import Ranks
from worker.executors.triton_executor import TritonExecutor, load_triton_executor
from worker.kernels.dtypes_triton import chip_of
from worker.kernels.paged_attention_forms import GROUPS, HEAD_DIMS
from worker.kernels.tuning_labels import tuning_labels
from worker.memory import MIB, free_memory_bytes
from worker.plan.op import Plan

SERVED = ("sm_8", "sm_9", "sm_10", "gfx942")
"""Beginnings of the architectures that tiles fit: sm_86 and sm_89 take those of sm_80."""
_ACTIVATIONS = {
    KvFormat.F32: torch.float32,
    KvFormat.BF16: torch.bfloat16,
    KvFormat.F16: torch.float16,
    KvFormat.INT8: torch.bfloat16,
}
"""By KV format: keys and values are int8, or of the type that everything else is computed in."""


class Gpu:
    """A `Device` of CUDA or HIP."""

    compiles = True

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self.name = str(self._device)
        self.label = f"{torch.cuda.get_device_name(self._device)} ({chip_of(self._device)})"
        properties = torch.cuda.get_device_properties(self._device)
        uuid = getattr(properties, "uuid", None)
        self.uuid = None if uuid is None else f"GPU-{uuid}"
        self.is_amd = torch.version.hip is not None
        self.pci_address = _pci_address(properties)

    def memory(self) -> DeviceMemory:
        """Ask the driver; what torch keeps for later is not free."""
        torch.cuda.synchronize(self._device)
        return DeviceMemory(*torch.cuda.mem_get_info(self._device))

    def peer(self, rank: int) -> "Gpu":
        """Return the GPU that many places behind this one."""
        return Gpu(self._device.index + rank)


class Interpreter:
    """A `Device` for tests: kernels are interpreted on the CPU, in the host's memory."""

    name = "cpu"
    label = "Triton's interpreter"
    uuid = pci_address = None
    is_amd = compiles = False

    def memory(self) -> DeviceMemory:
        """Say that all of the host's free memory is the device's."""
        free = free_memory_bytes()
        return DeviceMemory(free, free)

    def peer(self, rank: int) -> "Interpreter":
        """Return the same: ranks share the host."""
        return self


def check_heads(device: Device, plan: Plan) -> None:
    """Refuse heads that attention was never compiled for: nobody knows whether its tiles fit them.

    Raises:
        FatalError: Names the size of a head, or how many query heads share a key-value head.
    """
    if device.name == Interpreter.name:
        return
    if plan.head_dim not in HEAD_DIMS:
        sizes = ", ".join(map(str, HEAD_DIMS))
        raise FatalError(
            f"heads of {plan.head_dim} numbers: attention on a GPU has tiles for {sizes} alone;"
            " take --executor native"
        )
    if (group := plan.num_heads // plan.num_kv_heads) > max(GROUPS):
        raise FatalError(
            f"{group} query heads share a key-value head: attention on a GPU has tiles for at most"
            f" {max(GROUPS)}; take --executor native"
        )


def tuning_of(device: Device) -> dict[str, str]:
    """Return when and on what the tiles of a device were measured; see `tuning_labels`."""
    return tuning_labels(torch.device(device.name))


def first_visible(nodes: DeviceNodes) -> Gpu:
    """Return the first GPU that the driver shows this process.

    Args:
        nodes: What GPUs the kernel shows, to say which build of torch they need.

    Raises:
        UnusableDevice: torch reaches none, or its blocks have less room than any chip's tiles need.
    """
    if not torch.cuda.is_available():
        builds = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
        needed = [name for name, count in (("CUDA", nodes.nvidia), ("ROCm", nodes.amd)) if count]
        if any(builds[name] is not None for name in needed):
            why = "reaches none: look at the driver (nvidia-smi, rocminfo) and at CUDA_VISIBLE_DEVICES"
        else:
            of = next((name for name, version in builds.items() if version is not None), "CPUs")
            why = f"is a build for {of}: install one for {' or '.join(needed)}"
        raise UnusableDevice(f"there is a GPU here, but torch {torch.__version__} {why}")
    chip = _chip_name()
    if not chip.startswith(SERVED):
        raise UnusableDevice(
            f"{torch.cuda.get_device_name(0)} is {chip}: kernels have tiles for {', '.join(SERVED)} alone"
        )
    return Gpu(0)


def _pci_address(properties: object) -> str | None:
    """Return where a GPU sits on the PCI bus; older torch does not say."""
    numbers = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if any(number is None for number in numbers):
        return None
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _chip_name() -> str:
    """Return what the driver calls the first GPU's architecture, such as sm_90 or gfx942."""
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(0).gcnArchName)
    major, minor = torch.cuda.get_device_capability(0)
    return f"sm_{major}{minor}"


def device_of_rank(rank: int, size: int) -> Gpu:
    """Return the GPU of one of the ranks that compute a model together.

    Raises:
        FatalError: Fewer are visible than there are ranks.
    """
    if torch.cuda.device_count() < size:
        raise FatalError(
            f"{size} ranks need {size} GPUs, {torch.cuda.device_count()} are visible: lower"
            " --tensor-parallel-size, or look at CUDA_VISIBLE_DEVICES"
        )
    return Gpu(rank)


def load_on(
    device: Device,
    artifact: ModelArtifact,
    *,
    model_name: str,
    kv_format: KvFormat,
    int8_rows: bool,
    vendor_products: bool,
    limits: StepLimits,
    graph_sizes: Sequence[int],
    ranks: Ranks | None = None,
) -> TritonExecutor:
    """Load a model onto `device`; activations are of the KV format's type.

    Under int8 they are bfloat16, and float32 where kernels are interpreted.

    Raises:
        ArtifactError: The model cannot be read or computed.
        FatalError: Its weights do not fit.
    """
    is_interpreted = device.name == Interpreter.name
    is_exact = is_interpreted and kv_format is KvFormat.INT8
    if kv_format is KvFormat.F32 and not is_interpreted:
        raise FatalError("--kv-format f32: a GPU keeps KV in bf16, f16 or int8; f32 is --executor native's")
    _keep_compiled_kernels()
    try:
        return load_triton_executor(
            artifact,
            model_name=model_name,
            page_size=limits.page_size,
            dtype=torch.float32 if is_exact else _ACTIVATIONS[kv_format],
            kv_format=kv_format,
            int8_rows=int8_rows,
            vendor_products=vendor_products,
            device=device.name,
            limits=limits,
            graph_sizes=graph_sizes,
            ranks=ranks,
        )
    except torch.OutOfMemoryError as exc:
        free = device.memory().free_bytes
        raise FatalError(
            f"the weights do not fit on {device.label} ({free / MIB:,.0f} MiB were left):"
            " take fewer bits (quire quantize), a smaller model, or end what else runs there"
        ) from exc


def _keep_compiled_kernels() -> None:
    """Let Triton keep what it compiles in our cache folder, where a restart finds it, unless told otherwise.

    Triton reads this variable whenever it looks a kernel up.
    """
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_folder(os.environ) / "triton"))
