"""Chooses what computes a model on this machine, and loads it.

Knows which executor needs what: the native one a compiler and a plan whose operations it has, the torch one
its extra. Imports torch only when that is what computes; knows nothing of pools or of what is served.
"""

import importlib.util
from math import prod

import structlog

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.chassis.fatal import FatalError
from services.domain.kv_layout import KvFormat
from worker.config import Compute, ExecutorKind, WorkerConfig
from worker.executors.base import Executor
from worker.executors.native.bound_plan import UnsupportedOperation
from worker.executors.native.build import NoCompiler
from worker.executors.native.library import KV_FORMATS
from worker.executors.native.library import Compute as NativeCompute
from worker.executors.native_executor import NativeOptions, load_native_executor
from worker.memory import check_weights_fit, free_memory_bytes

TORCH_WEIGHT_BYTES = 4
"""Bytes of a number: the torch executor keeps weights in float32."""

_log = structlog.get_logger()


def load_executor(config: WorkerConfig) -> Executor:
    """Load the model that `config` names into the executor that it asks for.

    `auto` takes the native one, and torch where there is no compiler or an operation is lacking; that is said
    once.

    Raises:
        ArtifactError: The model cannot be read or computed.
        FatalError: What it takes is not here, or memory is too small; one line says what to do.
    """
    assert config.model_path is not None, "checked by the configuration"
    if config.kv_format not in (None, *KV_FORMATS):
        raise FatalError(
            f"--kv-format {config.kv_format}: executors here keep KV in {', '.join(KV_FORMATS)}"
        )  # fmt: skip
    artifact = open_artifact(config.model_path)
    if config.executor is ExecutorKind.TORCH:
        return _load_torch(config, artifact)
    try:
        return _load_native(config, artifact)
    except (NoCompiler, UnsupportedOperation) as exc:
        if config.executor is ExecutorKind.NATIVE or not _has_torch():
            raise FatalError(str(exc)) from exc
        _log.warning("torch_serves_instead_of_native", because=str(exc))
    return _load_torch(config, artifact)


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
        check_size=lambda weight_bytes: check_weights_fit(weight_bytes, free_memory_bytes()),
    )


def _load_torch(config: WorkerConfig, artifact: ModelArtifact) -> Executor:
    if config.kv_format not in (None, KvFormat.F32):
        raise FatalError(
            f"the torch executor keeps KV in f32; take --kv-format {config.kv_format} with --executor native"
        )
    num_parameters = sum(prod(tensor.shape) for tensor in artifact.tensors.values())
    check_weights_fit(num_parameters * TORCH_WEIGHT_BYTES, free_memory_bytes())
    try:
        from worker.executors.torch_executor import load_torch_executor
    except ModuleNotFoundError as exc:
        raise FatalError(f"the torch executor needs torch: pip install 'quire[torch]' ({exc})") from exc
    return load_torch_executor(
        artifact, model_name=config.model_name, page_size=config.page_size, num_threads=config.threads
    )


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None
