"""The native CPU executor: the plan handed to a C++ library once, then its steps, one after the other.

Knows the library, packed weights and pages; knows nothing of requests or why a row is in the step. Needs
numpy and a library that `native.build` compiled, and no torch. Every row of logits is the same bit for bit
alone, batched, in any chunking, after a prefix hit and on any number of threads: nothing is summed over rows
or by thread.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.chassis.cores import num_cores
from services.domain.ids import Namespace
from services.domain.kv_layout import KvFormat, KvOrder
from worker.engine.batch import Batch, StepResult
from worker.executors.base import ExecutorFault, LogitsTap, ModelProfile, digest_of, nothing
from worker.executors.native.bound_plan import UnsupportedOperation, bind_plan, check_supported
from worker.executors.native.build import Built, build
from worker.executors.native.library import Compute, Library, NativeError
from worker.executors.native.packed_size import packed_bytes
from worker.executors.native.packed_weights import PackedWeights, SwappedLayer, open_packed
from worker.executors.native.sampling import Draw, NativeRows, begin_sample
from worker.executors.native.step_arrays import StepArrays, copy_of, room_for_logits
from worker.executors.weights.loader import WeightSource, open_model
from worker.models.registry import BuiltModel
from worker.plan.arena import pack, rows_for
from worker.plan.op import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """How a native executor computes."""

    page_size: int = 16
    """Tokens in a page."""
    kv_format: KvFormat = KvFormat.F32
    compute: Compute = Compute.INT8
    """What activations become before a product with a quantised weight."""
    num_threads: int | None = None
    """Threads that compute; None: one per core."""
    instruction_set: str = "auto"
    """One that this CPU has, or `auto` for the best."""
    max_positions: int | None = None
    """Longest context to be ready for, which bounds the tables of rotations; None: the model's own."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A step under way, and all that it reads."""

    step: StepArrays
    draw: Draw


class NativeExecutor:
    """`worker.executors.base.OverlappingExecutor` in C++."""

    on_logits: LogitsTap | None = None
    """Called after each step with the batch and its logits [O, vocab] float32, before they are sampled
    and before `launch` returns. For tests and comparing executors; it must not keep or change the array."""

    def __init__(
        self,
        model: BuiltModel,
        weights: WeightSource,
        built: Built,
        *,
        name: str,
        revision: str,
        options: NativeOptions,
        environment: Mapping[str, str] = os.environ,
        layer_of: "tuple[int, NativeExecutor] | None" = None,
    ) -> None:
        """Args:
        environment: Where the cache folder of packed weights is looked up.
        layer_of: Take this layer's weights from another version of the model; for measuring it alone.
        """
        plan, config = model.plan, model.config
        max_positions = min(options.max_positions or config.max_positions, config.max_positions)
        self._plan = plan
        self._library = library = Library(built.path)
        layout = plan.kv_layout(options.kv_format, options.page_size, KvOrder.PANELS)
        key = f"{revision}-{built.instruction_set}-{built.digest}"
        # Held as long as the engine, which reads both where they are.
        packed = open_packed(library, plan, weights, key=key, environment=environment)
        self._packed: PackedWeights | SwappedLayer = packed
        if layer_of is not None:
            self._packed = SwappedLayer(packed, layer_of[1]._packed, layer_of[0])
        self._bound = bind_plan(
            library,
            plan,
            self._packed,
            layout,
            max_positions=max_positions,
            compute=options.compute,
            num_threads=options.num_threads or num_cores(),
        )
        self._engine = self._bound.handle
        self._destroy = weakref.finalize(self, library.call, "destroy", self._engine)
        assert library.call("page_bytes", self._engine) == layout.page_bytes, "both say how large a page is"
        numerics = digest_of(
            "native", built.instruction_set, built.digest, revision, options.compute.name, layout.format
        )
        self._profile = ModelProfile(
            model=name,
            revision=revision,
            namespace=Namespace(digest_of(revision, layout.digest, numerics)),
            numerics=numerics,
            executor="native",
            vocab_size=config.vocab_size,
            max_context_tokens=max_positions,
            page_size=options.page_size,
            page_bytes=layout.page_bytes,
            weight_bytes=self._packed.num_bytes + self._bound.table_bytes,
            kernels=self._bound.kernels,
        )
        self._max_rows = 0
        self._is_allocated = False
        self._logits = np.empty((0, config.vocab_size), np.float32)
        self._under_way: deque[Launched] = deque()
        """Kept, whoever forgets them: the library reads their arrays until they have ended."""

    @property
    def profile(self) -> ModelProfile:
        """What is loaded and what it costs."""
        return self._profile

    @property
    def plan(self) -> Plan:
        """What a step computes."""
        return self._plan

    def read_slot(self, slot: int, *, num_rows: int) -> NDArray[np.float32]:
        """Return a slot [num_rows, width] as the last step left it, for comparing executors.

        Only of a slot whose memory no later operation took, e.g. what the logits are made of.

        Raises:
            NativeError: There is no such slot in the arena.
        """
        width = self._plan.slots[slot].width if slot < len(self._plan.slots) else 0
        out = np.empty((num_rows, width), np.float32)
        self._library.check("read_slot", self._engine, slot, out.ctypes.data)
        return out

    def allocate(self, num_pages: int, *, captures: bool = True) -> None:
        """Reserve `num_pages` pages; the system commits them when they are first used.

        Raises:
            ExecutorFault: The machine does not have that much memory.
        """
        assert not self._is_allocated, "KV memory is allocated once"
        try:
            self._library.check("allocate", self._engine, num_pages)
        except NativeError as exc:
            raise ExecutorFault(
                f"cannot allocate {num_pages} pages of {self._profile.page_bytes} bytes"
            ) from exc
        self._is_allocated = True

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        """Run the plan once and draw a token for every output row (see `Executor.execute`)."""
        launched = self.launch(batch)
        try:
            meanwhile()
        finally:
            # Whatever became of it, the step reads our arrays until it ends.
            result = self.collect(launched)
        return result

    def launch(self, batch: Batch) -> Launched:
        """Begin a step (see `OverlappingExecutor.launch`)."""
        assert self._is_allocated, "allocate comes before the first step"
        with _faults():
            number, step, logits = self._begin(batch)
            try:
                if self.on_logits is not None:
                    self._library.check("wait", self._engine, number)
                    self.on_logits(batch, logits)
                rows = NativeRows(batch.sampling, num_behind=0 if batch.feeds is None else len(batch.feeds))
                draw = begin_sample(self._library, self._engine, logits, rows, batch.targets)
            except BaseException:
                # The step reads what would be gone.
                self._library.call("wait", self._engine, number)
                raise
        launched = Launched(step, draw)
        self._under_way.append(launched)
        return launched

    def collect(self, launched: Launched) -> StepResult:
        """Wait for the oldest step under way (see `OverlappingExecutor.collect`)."""
        assert launched is self._under_way[0], "the oldest step is collected first"
        with _faults():
            try:
                self._library.check("wait", self._engine, launched.draw.number)
            finally:
                self._under_way.popleft()
        return launched.draw.result()

    def close(self) -> None:
        """Give the KV memory back and end the threads."""
        self._destroy()

    def _begin(self, batch: Batch) -> tuple[int, StepArrays, NDArray[np.float32]]:
        """Begin a step's forward pass; its number, what it reads, and where its logits will be."""
        if len(batch.ids) > self._max_rows:
            self._grow(len(batch.ids))
        num_outputs = len(batch.out_rows)
        if num_outputs > len(self._logits):
            num_rows = max(num_outputs, 2 * len(self._logits))
            self._logits = room_for_logits(num_rows, self._profile.vocab_size)
        logits = self._logits[:num_outputs]
        step = copy_of(batch)
        number = self._library.begin("begin_step", self._engine, step.struct, logits.ctypes.data)
        return number, step, logits

    def _grow(self, num_tokens: int) -> None:
        """Lay the slots out for steps of at least so many tokens."""
        rows = rows_for(num_tokens)
        arena = pack(self._plan, num_tokens=rows, num_outputs=rows)
        offsets = np.array([-1 if offset is None else offset for offset in arena.offsets], np.int64)
        self._library.check("set_arena", self._engine, rows, offsets.ctypes.data, arena.size)
        self._max_rows = rows


def load_native_executor(
    source: ModelArtifact | Path | str,
    *,
    model_name: str,
    options: NativeOptions | None = None,
    check_size: Callable[[Plan, int], None] | None = None,
    in_floats: bool = False,
    layer_of: tuple[int, NativeExecutor] | None = None,
) -> NativeExecutor:
    """Load a model folder or GGUF file into a native executor. KV memory comes with `allocate`.

    Args:
        source: What `open_artifact` reads or gave.
        model_name: The name callers use.
        check_size: Given the plan and the bytes that the weights will take, before anything is compiled or
            read.
        in_floats: Hold the exact numbers of quantised weights instead of their codes; for measuring codes.
        layer_of: Take this layer's weights from another version of the model; for measuring it alone.

    Raises:
        ArtifactError: The model cannot be read or is not one that we compute; names file and tensor.
        NoCompiler: The library is not compiled and cannot be.
        UnsupportedOperation: The library lacks an operation, a shape or a format of the model.
    """
    options = NativeOptions() if options is None else options
    artifact = source if isinstance(source, ModelArtifact) else open_artifact(source)
    model, weights = open_model(artifact)
    check_supported(model.plan)
    revision = artifact.revision
    if in_floats:
        # Other bytes of the same file: packed, and named, apart.
        weights, revision = weights.in_floats(), f"{revision}f32"
    if check_size is not None:
        check_size(model.plan, packed_bytes(model.plan, weights))
    built = build(options.instruction_set)
    try:
        return NativeExecutor(
            model, weights, built, name=model_name, revision=revision, options=options, layer_of=layer_of
        )
    except NativeError as exc:
        raise UnsupportedOperation(str(exc)) from exc


@contextmanager
def _faults() -> Iterator[None]:
    """Turn what a step fails by into an `ExecutorFault`."""
    try:
        yield
    except (NativeError, MemoryError) as exc:
        raise ExecutorFault(f"a step failed in the native executor: {exc}") from exc
