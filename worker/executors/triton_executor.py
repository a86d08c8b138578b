"""The GPU's executor: a loop of Triton launches over the plan, or a CUDA graph of them where a step decodes.

Weights are multiplied as codes of 4 or 8 bits where the file has them, else in the type of activations. Knows
plans, weights, pages and a device; knows nothing of requests or why a row is in the step. Where kernels are
interpreted the device is the CPU: that is for tests.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import triton

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.domain.ids import Namespace
from services.domain.kv_layout import KvFormat
from worker.engine.batch import Batch, StepResult
from worker.executors.base import ExecutorFault, LogitsTap, ModelProfile, StepLimits, digest_of, nothing
from worker.executors.torch_ranks import Ranks
from worker.executors.triton_cuda_stream import CudaStream
from worker.executors.triton_plan import TritonPlan
from worker.executors.triton_runner import Launched, StepRunner
from worker.executors.triton_stream import InterpretedStream, Stream, device_faults
from worker.executors.triton_tiles import with_tiles
from worker.executors.weights.loader import WeightSource, open_model, shard_model
from worker.kernels import linear_tuning
from worker.kernels import paged_attention_tuning as attention_tuning
from worker.kernels.dtypes_triton import INTERPRETED, chip_of
from worker.kernels.kv_pages_torch import layer_kv
from worker.models.decoder import DecoderConfig
from worker.models.registry import BuiltModel

_DTYPES = {
    KvFormat.F32: torch.float32,
    KvFormat.BF16: torch.bfloat16,
    KvFormat.F16: torch.float16,
    KvFormat.INT8: torch.int8,
}


class TritonExecutor:
    """`worker.executors.base.Executor` in Triton."""

    on_logits: LogitsTap | None = None
    """As `TorchExecutor.on_logits`."""

    def __init__(
        self,
        model: BuiltModel,
        weights: WeightSource,
        *,
        name: str,
        revision: str,
        page_size: int,
        dtype: torch.dtype,
        kv_format: KvFormat,
        int8_rows: bool,
        limits: StepLimits,
        graph_sizes: Sequence[int],
        stream: Stream,
        vendor_products: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        plan, config = model.plan, model.config
        assert kv_format is KvFormat.INT8 or _DTYPES[kv_format] is dtype, "KV is int8 or what q is"
        self._stream, self._limits, self._graph_sizes = stream, limits, graph_sizes
        self._layout = plan.kv_layout(kv_format, page_size)
        device = stream.device
        with torch.inference_mode():
            self._plan = TritonPlan(
                plan,
                weights,
                dtype=dtype,
                max_positions=config.max_positions,
                device=device,
                kv_format=kv_format,
                int8_rows=int8_rows,
                vendor_products=vendor_products,
                ranks=ranks,
            )
        self._profile = self._profile_of(
            name, revision, config, formats=(str(dtype), kv_format, str(int8_rows))
        )
        self._ranks = ranks
        self._runner: StepRunner | None = None
        self._fault: ExecutorFault | None = None

    @property
    def profile(self) -> ModelProfile:
        """What is loaded and what it costs."""
        return self._profile

    def join(self, store: Path) -> None:
        """Meet the other ranks, once (see `Ranks.join`), before memory is allocated.

        Raises:
            ExecutorFault: They did not all come in time.
        """
        assert self._ranks is not None, "this model is not shared"
        with device_faults("meeting the other ranks"):
            self._ranks.join(store)

    def allocate(self, num_pages: int, *, captures: bool = True) -> None:
        """Allocate `num_pages` pages and all that steps work in; capture decode (see `Executor.allocate`).

        Raises:
            ExecutorFault: The device does not have that much memory.
        """
        assert self._runner is None, "KV memory is allocated once"
        layout, stream = self._layout, self._stream
        with (
            device_faults(f"allocating {num_pages} pages of {layout.page_bytes} bytes"),
            torch.inference_mode(),
        ):
            # One page more than the pool knows: rows of padding store there.
            memory = stream.allocate((num_pages + 1) * layout.page_bytes).view(num_pages + 1, -1)
            kv = [
                layer_kv(
                    memory,
                    _DTYPES[layout.format],
                    layer=layer,
                    num_layers=layout.num_layers,
                    kv_heads=layout.num_kv_heads,
                    page_size=layout.page_size,
                    head_dim=layout.head_dim,
                )
                for layer in range(layout.num_layers)
            ]
            self._runner = StepRunner(
                self._plan,
                kv,
                stream,
                self._limits,
                self._graph_sizes if captures else (),
                vocab_size=self._profile.vocab_size,
                padding_page=num_pages,
            )
            if self._ranks is not None:
                # Not before: ranks that compile do not all take the same time.
                self._ranks.bound()

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        """Launch a step and wait for it (see `Executor.execute`)."""
        launched = self.launch(batch)
        meanwhile()
        return self.collect(launched)

    def launch(self, batch: Batch) -> Launched:
        """Queue a step (see `OverlappingExecutor.launch`)."""
        with self._running() as runner:
            launched = runner.launch(batch)
            if self.on_logits is not None:
                self.on_logits(batch, runner.read_logits(len(batch.out_rows)))
            return launched

    def collect(self, launched: Launched) -> StepResult:
        """Wait for the oldest step under way (see `OverlappingExecutor.collect`)."""
        with self._running() as runner:
            return runner.collect(launched)

    def _profile_of(
        self, name: str, revision: str, config: DecoderConfig, *, formats: Sequence[str]
    ) -> ModelProfile:
        """Say what was loaded. formats: All that decides in which numbers the plan is computed."""
        chip = chip_of(self._stream.device)
        versions = (triton.__version__, chip, linear_tuning.numerics(chip), attention_tuning.numerics(chip))
        is_invariant = not self._plan.uses_vendor
        shared = digest_of("triton", *versions, revision, *formats, str(INTERPRETED), str(is_invariant))
        return ModelProfile(
            model=name,
            revision=revision,
            namespace=Namespace(digest_of(revision, self._layout.digest, shared)),
            # Where a row's bits depend on its company, nobody else promises the same: not even another boot.
            numerics=shared if is_invariant else digest_of(shared, secrets.token_hex(16)),
            executor="triton",
            vocab_size=config.vocab_size,
            max_context_tokens=config.max_positions,
            page_size=self._layout.page_size,
            page_bytes=self._layout.page_bytes,
            weight_bytes=self._plan.weight_bytes,
            kernels=with_tiles(self._plan.kernels, self._stream.device),
            is_batch_invariant=is_invariant,
        )

    @contextmanager
    def _running(self) -> Iterator[StepRunner]:
        assert self._runner is not None, "allocate comes before the first step"
        if self._fault is not None:
            raise ExecutorFault(str(self._fault)) from self._fault
        try:
            with device_faults("a step"), torch.inference_mode():
                yield self._runner
        except ExecutorFault as fault:
            self._fault = fault
            raise

    def close(self) -> None:
        """Drop graphs, KV memory and what steps work in, which may be allocated anew; weights stay."""
        self._runner = None

    def leave(self) -> None:
        """Exchange nothing with the other ranks any more (see `Ranks.leave`)."""
        if self._ranks is not None:
            self._ranks.leave()


def load_triton_executor(
    source: ModelArtifact | Path | str,
    *,
    model_name: str,
    page_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    kv_format: KvFormat = KvFormat.INT8,
    int8_rows: bool = False,
    vendor_products: bool = False,
    device: str = "cuda",
    limits: StepLimits | None = None,
    graph_sizes: Sequence[int] = (),
    stream: Stream | None = None,
    ranks: Ranks | None = None,
) -> TritonExecutor:
    """Load a model folder or GGUF file onto a device. KV memory comes with `allocate`.

    Args:
        source: What `open_artifact` reads or gave.
        model_name: The name callers use.
        page_size: Tokens in a page.
        dtype: Of activations, and of weights that are no codes: bfloat16 or float16; float32 where kernels
            are interpreted.
        kv_format: int8, or that of `dtype`.
        int8_rows: Whether rows become int8 codes before products with weights of 8 bits.
        vendor_products: Whether the vendor's library multiplies with dense weights. Then a row's bits depend
            on what else is in the step.
        device: torch's name of it; `cpu` where kernels are interpreted.
        limits: The largest step; absent: 512 tokens of 32 sequences of the model's context.
        graph_sizes: Sequences for which decode is captured; a step takes the next larger one, if there is.
        stream: One that is not `device`'s own, for tests.
        ranks: With whom the model is shared; this process loads its own share.

    Raises:
        ArtifactError: The model cannot be read or is not one that we compute; names file and tensor.
        CannotShard: It does not divide over so many ranks.
    """
    artifact = source if isinstance(source, ModelArtifact) else open_artifact(source)
    model, weights = open_model(artifact)
    if ranks is not None:
        model, weights = shard_model(model, weights, rank=ranks.rank, size=ranks.size)
    return TritonExecutor(
        model,
        weights,
        name=model_name,
        revision=artifact.revision,
        page_size=page_size,
        dtype=dtype,
        kv_format=kv_format,
        int8_rows=int8_rows,
        vendor_products=vendor_products,
        limits=limits or _limits_of(model, page_size),
        graph_sizes=graph_sizes,
        stream=stream or stream_on(torch.device(device)),
        ranks=ranks,
    )


def _limits_of(model: BuiltModel, page_size: int) -> StepLimits:
    return StepLimits(
        max_sequences=32,
        max_step_tokens=512,
        max_context_tokens=model.config.max_positions,
        page_size=page_size,
    )


def stream_on(device: torch.device) -> Stream:
    """Return a stream of one's own on a GPU; where kernels are interpreted, one that does all at once."""
    return InterpretedStream() if device.type == "cpu" else CudaStream(device)
