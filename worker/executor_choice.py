"""Chooses what computes a model on this machine, and loads it.

Knows which executor needs what: Triton a GPU, the native one a compiler and a plan whose operations it has,
the torch one its extra. Imports torch only when that or Triton computes; knows nothing of pools or of what is
served.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import structlog

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.chassis.fatal import FatalError
from services.domain.kv_layout import KvFormat
from worker.config import Compute, DenseProducts, ExecutorKind, WorkerConfig
from worker.devices import Device, NoDevice, UnusableDevice, find_device, has_module, is_interpreted
from worker.executors.base import Executor, ExecutorFault, StepLimits
from worker.executors.native.bound_plan import UnsupportedOperation
from worker.executors.native.build import NoCompiler
from worker.executors.native.library import KV_FORMATS
from worker.executors.native.library import Compute as NativeCompute
from worker.executors.native_executor import NativeOptions, load_native_executor
from worker.executors.ranks.group import load_group
from worker.executors.ranks.messages import RankSpec
from worker.executors.weights.gpu_size import least_bytes
from worker.executors.weights.loader import open_model
from worker.memory import PoolNeed, check_fits, free_memory_bytes
from worker.memory_plan import page_bytes_of
from worker.plan.op import Plan
from worker.plan.shard import CannotShard

TORCH_WEIGHT_BYTES = 4
"""Bytes of a number: the torch executor keeps weights in float32."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Where a model was loaded that does not compute in the host's memory."""

    device: Device
    free_before: int
    """Bytes that were free there before it was loaded."""
    peers: tuple[Device, ...] = ()
    """Devices of the other ranks, from 1 on."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded model, its KV memory not allocated yet."""

    executor: Executor
    on: OnDevice | None = None
    """None: the host."""


def open_executor(config: WorkerConfig, find: Callable[[], Device] = find_device) -> Opened:
    """Load the model that `config` names into the executor that it asks for.

    `auto` takes Triton where there is a GPU, else the native executor, and torch, with KV in float32 whatever
    was asked, where there is no compiler or an operation is lacking. Whatever is here and cannot be used is
    said once.

    Args:
        find: Returns the GPU to use, or raises `NoDevice`.

    Raises:
        ArtifactError: The model cannot be read or computed.
        FatalError: What it takes is not here, or memory is too small; one line says what to do.
    """
    assert config.model_path is not None, "checked by the configuration"
    artifact = open_artifact(config.model_path)
    if config.tensor_parallel_size > 1:
        return _open_group(config, artifact, find)
    if config.executor is ExecutorKind.TORCH:
        return Opened(_load_torch(config, artifact))
    device = _device_of(config, find)
    if device is not None:
        return _load_triton(config, artifact, device)
    _check_host_format(config)
    try:
        return Opened(_load_native(config, artifact))
    except (NoCompiler, UnsupportedOperation) as exc:
        if config.executor is ExecutorKind.NATIVE or not has_module("torch"):
            raise FatalError(str(exc)) from exc
        kv = KvFormat.F32.value
        _log.warning("torch_serves_instead_of_native", because=str(exc), kv_format=kv)
    # A format that only the native executor keeps must not end in "take --executor native": it cannot be had.
    return Opened(_load_torch(replace(config, kv_format=None), artifact))


def _device_of(config: WorkerConfig, find: Callable[[], Device]) -> Device | None:
    """Return the device that Triton is to run on; None where it is not what runs."""
    if config.executor is ExecutorKind.NATIVE:
        return None
    is_asked_for = config.executor is ExecutorKind.TRITON
    if is_asked_for and is_interpreted():
        return _interpreter()
    try:
        return find()
    except NoDevice as exc:
        if is_asked_for:
            raise FatalError(f"--executor triton: {exc}; or take --executor native") from exc
        if isinstance(exc, UnusableDevice):
            _log.warning("gpu_not_used", because=str(exc))
    return None


def _interpreter() -> Device:
    if not (has_module("torch") and has_module("triton")):
        raise FatalError("--executor triton, interpreted, needs pip install 'quire[torch,triton]'")
    from worker.executors.triton_device import Interpreter

    _log.warning("kernels_are_interpreted", effect="every answer takes minutes: this is for tests")
    return Interpreter()


def _load_triton(config: WorkerConfig, artifact: ModelArtifact, device: Device) -> Opened:
    from worker.executors.triton_device import check_heads, load_on, tuning_of

    free = device.memory().free_bytes
    built, weights = open_model(artifact)
    check_heads(device, built.plan)
    _check_memory(config, built.plan, KvFormat.INT8, least_bytes(built.plan, weights), free)
    executor = load_on(
        device,
        artifact,
        model_name=config.model_name,
        kv_format=config.kv_format or KvFormat.INT8,
        int8_rows=config.compute is Compute.INT8,
        vendor_products=config.dense_products is DenseProducts.VENDOR,
        limits=step_limits(config, built.config.max_positions),
        graph_sizes=config.cuda_graph_sizes,
    )
    _log.info("computing_on_a_gpu", device=device.label, **tuning_of(device))
    return Opened(executor, OnDevice(device, free))


def step_limits(config: WorkerConfig, model_context_tokens: int) -> StepLimits:
    """Return what bounds a step of a model that could take contexts of `model_context_tokens`."""
    return StepLimits(
        max_sequences=config.max_sequences,
        max_step_tokens=config.max_step_tokens,
        max_context_tokens=min(model_context_tokens, config.max_context_tokens or model_context_tokens),
        page_size=config.page_size,
    )


def _check_memory(
    config: WorkerConfig,
    plan: Plan,
    kv_format: KvFormat,
    weight_bytes: int,
    device_free_bytes: int | None = None,
    *,
    ranks: int = 1,
) -> None:
    """Refuse what cannot fit before anything is compiled or read (`check_fits`).

    Args:
        kv_format: What the executor keeps KV in where the configuration does not say.
        device_free_bytes: None: it computes in the host's memory.
        ranks: Devices that share weights and pages evenly; a page of theirs is never smaller than its share.
    """
    if device_free_bytes is None:
        free_bytes, fraction = free_memory_bytes(), config.kv_memory_fraction
    else:
        free_bytes, fraction = device_free_bytes, config.kv_memory_fraction or 1.0
    need = PoolNeed(
        page_bytes=page_bytes_of(plan, config.kv_format or kv_format, config.page_size) // ranks,
        page_size=config.page_size,
        max_context_tokens=config.max_context_tokens or 1,
        max_sequences=config.max_sequences,
    )
    check_fits(
        weight_bytes // ranks,
        need,
        kv_bytes=config.kv_memory,
        free_bytes=free_bytes,
        fraction=fraction,
    )


def _check_host_format(config: WorkerConfig) -> None:
    if config.dense_products is DenseProducts.VENDOR:
        raise FatalError("--dense-products vendor: there is no GPU to use; leave it out on a CPU")
    if config.kv_format not in (None, *KV_FORMATS):
        formats = ", ".join(KV_FORMATS)
        raise FatalError(f"--kv-format {config.kv_format}: executors on a CPU keep KV in {formats}")


def _load_native(config: WorkerConfig, artifact: ModelArtifact) -> Executor:
    options = NativeOptions(
        page_size=config.page_size,
        kv_format=config.kv_format or KvFormat.INT8,
        compute=NativeCompute.F32 if config.compute is Compute.FP32 else NativeCompute.INT8,
        num_threads=config.threads,
        instruction_set=config.instruction_set,
        max_positions=config.max_context_tokens,
    )
    return load_native_executor(
        artifact,
        model_name=config.model_name,
        options=options,
        check_size=lambda plan, weight_bytes: _check_memory(config, plan, KvFormat.INT8, weight_bytes),
    )


def _open_group(config: WorkerConfig, artifact: ModelArtifact, find: Callable[[], Device]) -> Opened:
    """Load the model into as many ranks as the configuration says; this process is rank 0."""
    size = config.tensor_parallel_size
    device = None if config.executor is ExecutorKind.TORCH else _device_of(config, find)
    free = 0 if device is None else device.memory().free_bytes
    built, weights = open_model(artifact)
    spec = RankSpec(
        executor="torch" if device is None else "triton",
        device="cuda" if device is not None and device.name.startswith("cuda") else "cpu",
        path=str(config.model_path),
        model_name=config.model_name,
        rank=0,
        size=size,
        limits=step_limits(config, built.config.max_positions),
        limit_s=config.restart_after_s,
    )
    if device is None:
        _check_torch(config, artifact)
        spec = replace(spec, num_threads=config.threads or max(1, (os.cpu_count() or 1) // size))
    else:
        from worker.executors.triton_device import check_heads, tuning_of

        check_heads(device, built.plan)
        _check_memory(config, built.plan, KvFormat.INT8, least_bytes(built.plan, weights), free, ranks=size)
        spec = replace(
            spec,
            kv_format=config.kv_format or KvFormat.INT8,
            int8_rows=config.compute is Compute.INT8,
            vendor_products=config.dense_products is DenseProducts.VENDOR,
            graph_sizes=config.cuda_graph_sizes,
        )
    try:
        executor = load_group(artifact, spec)
    except CannotShard as exc:
        raise FatalError(f"--tensor-parallel-size {size}: {exc}") from exc
    except ExecutorFault as exc:
        raise FatalError(f"--tensor-parallel-size {size}: {exc} ({exc.__cause__})") from exc
    if device is None:
        return Opened(executor)
    _log.info("computing_on_gpus", device=device.label, ranks=size, **tuning_of(device))
    peers = tuple(device.peer(rank) for rank in range(1, size))
    return Opened(executor, OnDevice(device, free, peers))


def _check_torch(config: WorkerConfig, artifact: ModelArtifact) -> None:
    """Refuse what the torch executor cannot do here, before anything is loaded."""
    _check_host_format(config)
    if config.kv_format not in (None, KvFormat.F32):
        raise FatalError(
            f"the torch executor keeps KV in f32; take --kv-format {config.kv_format} with --executor native"
        )
    num_parameters = sum(prod(tensor.shape) for tensor in artifact.tensors.values())
    built, _ = open_model(artifact)
    _check_memory(config, built.plan, KvFormat.F32, num_parameters * TORCH_WEIGHT_BYTES)
    if not has_module("torch"):
        raise FatalError("the torch executor needs torch: pip install 'quire[torch]'")


def _load_torch(config: WorkerConfig, artifact: ModelArtifact) -> Executor:
    _check_torch(config, artifact)
    from worker.executors.torch_executor import load_torch_executor

    return load_torch_executor(
        artifact, model_name=config.model_name, page_size=config.page_size, num_threads=config.threads
    )
