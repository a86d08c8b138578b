"""The GPU's executor: a loop of Triton launches over the plan, one after the other.

Weights are multiplied as codes of 4 or 8 bits where the file has them, else in the type of activations. Knows
plans, weights, pages and a device; knows nothing of requests or why a row is in the step. Where kernels are
interpreted the device is the CPU: that is for tests.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.domain.ids import Namespace
from services.domain.kv_layout import KvFormat, KvLayout
from worker.engine.batch import Batch, StepResult
from worker.executors.base import ExecutorFault, ModelProfile
from worker.executors.triton_plan import TritonPlan
from worker.executors.triton_sampling import draw
from worker.executors.triton_step import TritonStep
from worker.executors.weights.loader import WeightSource, open_model
from worker.kernels import linear_tuning
from worker.kernels import paged_attention_tuning as attention_tuning
from worker.kernels.dtypes_triton import INTERPRETED, chip_of
from worker.kernels.kv_pages_torch import LayerKv, layer_kv
from worker.kernels.sampling_triton import SamplingScratch
from worker.models.registry import BuiltModel

LogitsTap = Callable[[Batch, NDArray[np.float32]], None]

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
        device: torch.device,
    ) -> None:
        plan, config = model.plan, model.config
        assert kv_format is KvFormat.INT8 or _DTYPES[kv_format] is dtype, "KV is int8 or what q is"
        self._device = device
        self._layout = KvLayout(
            format=kv_format,
            num_layers=plan.num_layers,
            num_kv_heads=plan.num_kv_heads,
            head_dim=plan.head_dim,
            page_size=page_size,
        )
        with torch.inference_mode():
            self._plan = TritonPlan(
                plan, weights, dtype=dtype, max_positions=config.max_positions, device=device
            )
        chip = chip_of(device)
        versions = (triton.__version__, chip, linear_tuning.numerics(chip), attention_tuning.numerics(chip))
        numerics = _digest("triton", *versions, revision, str(dtype), kv_format, str(INTERPRETED))
        self._profile = ModelProfile(
            model=name,
            revision=revision,
            namespace=Namespace(_digest(revision, self._layout.digest, numerics)),
            numerics=numerics,
            executor="triton",
            vocab_size=config.vocab_size,
            max_context_tokens=config.max_positions,
            page_size=page_size,
            page_bytes=self._layout.page_bytes,
            weight_bytes=self._plan.weight_bytes,
            kernels=self._plan.kernels,
        )
        self._kv: list[LayerKv] | None = None
        self._scratch: SamplingScratch | None = None

    @property
    def profile(self) -> ModelProfile:
        """What is loaded and what it costs."""
        return self._profile

    def allocate(self, num_pages: int) -> None:
        """Allocate `num_pages` pages on the device.

        Raises:
            ExecutorFault: The device does not have that much memory.
        """
        assert self._kv is None, "KV memory is allocated once"
        layout = self._layout
        try:
            pages = torch.empty(num_pages, layout.page_bytes, dtype=torch.uint8, device=self._device)
        except RuntimeError as exc:
            raise ExecutorFault(f"cannot allocate {num_pages} pages of {layout.page_bytes} bytes") from exc
        self._kv = [
            layer_kv(
                pages,
                _DTYPES[layout.format],
                layer=layer,
                num_layers=layout.num_layers,
                kv_heads=layout.num_kv_heads,
                page_size=layout.page_size,
                head_dim=layout.head_dim,
            )
            for layer in range(layout.num_layers)
        ]

    def execute(self, batch: Batch) -> StepResult:
        """Launch the plan once and draw a token for every output row (see `Executor.execute`)."""
        assert self._kv is not None, "allocate comes before the first step"
        try:
            with torch.inference_mode():
                step = TritonStep.of(batch, page_size=self._layout.page_size, device=self._device)
                logits = self._plan.run(step, self._kv)
                if self.on_logits is not None:
                    self.on_logits(batch, logits.cpu().numpy())
                return draw(logits, batch.sampling, self._scratch_of(logits), batch.targets)
        except RuntimeError as exc:
            raise ExecutorFault("a step failed on the device") from exc

    def close(self) -> None:
        """Drop the KV memory, which may be allocated anew; weights go with the executor itself."""
        self._kv = None
        self._scratch = None

    def _scratch_of(self, logits: Tensor) -> SamplingScratch:
        """Return the sampler's memory, which grows to the most rows seen."""
        rows, vocab_size = logits.shape
        if self._scratch is None or len(self._scratch.work) < rows:
            self._scratch = SamplingScratch.allocate(rows, vocab_size, self._device)
        return self._scratch


def load_triton_executor(
    source: ModelArtifact | Path | str,
    *,
    model_name: str,
    page_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    kv_format: KvFormat = KvFormat.INT8,
    device: str = "cuda",
) -> TritonExecutor:
    """Load a model folder or GGUF file onto a device. KV memory comes with `allocate`.

    Args:
        source: What `open_artifact` reads or gave.
        model_name: The name callers use.
        page_size: Tokens in a page.
        dtype: Of activations, and of weights that are no codes: bfloat16 or float16; float32 where kernels
            are interpreted.
        kv_format: int8, or that of `dtype`.
        device: torch's name of it; `cpu` where kernels are interpreted.

    Raises:
        ArtifactError: The model cannot be read or is not one that we compute; names file and tensor.
    """
    artifact = source if isinstance(source, ModelArtifact) else open_artifact(source)
    model, weights = open_model(artifact)
    return TritonExecutor(
        model,
        weights,
        name=model_name,
        revision=artifact.revision,
        page_size=page_size,
        dtype=dtype,
        kv_format=kv_format,
        device=torch.device(device),
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
