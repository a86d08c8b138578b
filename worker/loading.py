"""Opens the model, loads the executor and sizes its pool, before anything is served.

Blocking, and run in a thread. Knows pools and the sim; which executor computes is `executor_choice`'s to say.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import structlog

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.artifacts.errors import ArtifactError
from services.chassis.fatal import EngineFailed, FatalError
from services.domain.generation import SamplingParams
from worker.config import ExecutorKind, WorkerConfig
from worker.device_memory import device_room, measure_use
from worker.devices import Device
from worker.engine.batch import Batch, SampleRow
from worker.executor_choice import Opened, open_executor, step_limits
from worker.executors.base import Executor, ExecutorFault
from worker.executors.sim import CostModel, SimConfig, SimExecutor, SimFaults
from worker.largest_steps import largest_steps
from worker.memory import KvRoom, PoolNeed, PoolSize, free_memory_bytes, host_room, size_pool
from worker.warm_up import warm_up_steps

SIM_TOKEN_BYTES = 23_040
"""What a token of a model of 135M parameters takes in 16-bit numbers."""
SIM_FREE_BYTES = 1 << 30
"""Memory that a sim pretends to have."""
SIM_WORDS = 4096
"""Words that a sim with a real vocabulary draws from."""
_TRIM_THRESHOLD = -1
"""`M_TRIM_THRESHOLD` of glibc: from how many free bytes at its end a heap shrinks."""
_KEPT_HEAP = 1 << 20
"""Bytes: small arrays of a step find their memory again, larger ones cost no memory between steps."""
_LARGER_PIECE = 100 << 10
"""Bytes: above the 64 KiB from which glibc looks at the end of a heap."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run: its memory is allocated and one step was made."""

    executor: Executor
    pool: PoolSize
    max_context_tokens: int
    device: Device | None = None
    """What it computes on, besides the CPU."""
    peers: tuple[Device, ...] = ()
    """Those of the other ranks, from 1 on."""


def load(config: WorkerConfig, open_model: Callable[[WorkerConfig], Opened] = open_executor) -> Loaded:
    """Load what `config` names, allocate its KV memory and run one step.

    Args:
        open_model: Loads anything but a sim.

    Raises:
        FatalError: The model is damaged or missing, or memory is too small; one line says which.
    """
    started = time.monotonic()
    try:
        opened = Opened(_load_sim(config)) if config.executor is ExecutorKind.SIM else open_model(config)
    except ArtifactError as exc:
        raise FatalError(str(exc)) from exc
    executor, profile = opened.executor, opened.executor.profile
    max_context = min(profile.max_context_tokens, config.max_context_tokens or profile.max_context_tokens)
    need = PoolNeed(
        page_bytes=profile.page_bytes,
        page_size=profile.page_size,
        max_context_tokens=max_context,
        max_sequences=config.max_sequences,
    )
    pool = size_pool(need, kv_bytes=config.kv_memory, room=_room(config, opened, need))
    _log.info("kv_pool_sized", pages=pool.num_pages, arithmetic=pool.arithmetic)
    try:
        executor.allocate(pool.num_pages)
        executor.execute(warm_up_batch())
    except ExecutorFault as exc:
        raise EngineFailed(f"the first step failed: {exc}; lower --kv-memory or look at the device") from exc
    give_back_free_heap()
    _log.info(
        "model_loaded",
        model=profile.model,
        revision=profile.revision,
        executor=profile.executor,
        weight_bytes=profile.weight_bytes,
        load_s=round(time.monotonic() - started, 2),
    )
    on = opened.on
    return Loaded(executor, pool, max_context, on.device if on else None, on.peers if on else ())


def _room(config: WorkerConfig, opened: Opened, need: PoolNeed) -> KvRoom:
    """Return what the pool may take: of a device by a profile run, of the host by what is free.

    That run is the device's warm-up too: after it every kernel is compiled.
    """
    if config.executor is ExecutorKind.SIM:
        return host_room(max(SIM_FREE_BYTES, config.kv_memory or 0), 1.0)
    if opened.on is None:
        return host_room(free_memory_bytes(), config.kv_memory_fraction)
    limits = step_limits(config, need.max_context_tokens)
    steps = warm_up_steps(limits) if opened.on.device.compiles else largest_steps(limits)
    use = measure_use(opened.executor, opened.on.device, steps, free_before=opened.on.free_before)
    return device_room(use, config.kv_memory_fraction)


def give_back_free_heap() -> None:
    """Return what this thread has freed to the system; other C libraries do so by themselves, or not.

    The vocabulary and merges of a GGUF file and the making of rotation tables leave 10 MB (49k ids) to 17 MB
    (262k ids) behind, packing weights 17 MB: glibc keeps them for allocations that a worker does not make.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return
    # 1. Pieces between others.
    library.malloc_trim(0)
    # 2. The end of the heap of a thread that is not the first: only freeing a larger piece gives that back.
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    library.mallopt(_TRIM_THRESHOLD, _KEPT_HEAP)
    library.free(library.malloc(_LARGER_PIECE))


def warm_up_batch() -> Batch:
    """Return one token of one sequence on page 0, which nobody holds yet."""

    def int32(*values: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
        return np.array(values, np.int32)

    row = SampleRow(
        params=SamplingParams(temperature=0), choice=0, position=0, prompt_ids=(0,), output_ids=()
    )
    return Batch(
        ids=int32(0),
        positions=int32(0),
        query_start=int32(0, 1),
        context_len=int32(1),
        page_table=int32(0).reshape(1, 1),
        out_rows=int32(0),
        sampling=(row,),
    )


def _load_sim(config: WorkerConfig) -> Executor:
    faults = SimFaults(
        extra_step_s=config.sim_extra_step_ms / 1000,
        bad_token=config.sim_bad_token,
        crash_token=config.sim_crash_token,
        stall_token=config.sim_stall_token,
    )
    sim = SimConfig(
        model=config.model_name,
        vocab_size=config.sim_vocab_size,
        max_context_tokens=config.sim_context_tokens,
        page_size=config.page_size,
        page_bytes=config.page_size * SIM_TOKEN_BYTES,
        cost=CostModel(
            prefill_tokens_per_s=config.sim_prefill_tokens_per_s,
            step_s=config.sim_step_ms / 1000,
            decode_sequence_s=config.sim_decode_ms / 1000,
            decode_context_token_s=config.sim_context_ms / 1e6,
        ),
    )
    if config.model_path is not None:
        sim = _like_model(sim, config.model_path)
    return SimExecutor(sim, faults)


def _like_model(sim: SimConfig, path: Path) -> SimConfig:
    """Take sizes and words from a real model, so that its gateway makes text of what the sim draws."""
    artifact = open_artifact(path)
    return replace(
        sim,
        vocab_size=int(artifact.config["vocab_size"]),
        max_context_tokens=int(artifact.config["max_position_embeddings"]),
        palette=_whole_words(artifact),
    )


def _whole_words(artifact: ModelArtifact) -> tuple[int, ...]:
    tokenizer = artifact.tokenizer
    words = []
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.token_bytes(token_id)
        if len(piece) > 2 and piece[:1] == b" " and piece[1:].isalpha() and piece.isascii():
            words.append(token_id)
            if len(words) == SIM_WORDS:
                break
    return tuple(words)
