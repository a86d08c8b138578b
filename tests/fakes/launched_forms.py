"""What steps of a model would launch on a chip, without weights, memory or the chip: tensors without content.

The launch code is the product's own; only weights are empty. Knows plans and kernels' arguments; knows
nothing of which of these matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from services.domain.kv_layout import KvFormat
from worker.executors import triton_plan
from worker.executors.base import StepLimits
from worker.executors.triton_plan import TritonPlan
from worker.executors.triton_step import TritonStep
from worker.kernels import dtypes_triton, linear_triton, paged_attention_triton, sampling
from worker.kernels.aot import CHIPS
from worker.kernels.kv_pages_torch import LayerKv, layer_kv
from worker.kernels.packed_linear import GROUPS
from worker.kernels.packed_matrix_torch import PackedMatrix
from worker.kernels.paged_attention_triton import PagedBatch
from worker.kernels.sampling_triton import Drawn, SamplingScratch, sample
from worker.models.registry import BuiltModel
from worker.plan.op import Plan

_META = torch.device("meta")
_LIMITS = StepLimits(max_sequences=40, max_step_tokens=300, max_context_tokens=2048, page_size=16)
_STEPS = ((1, 1, 1), (40, 40, 40), (300, 3, 100))
"""Tokens, sequences and rows of logits of steps: a product's ladder has other tiles for each. The first two
decode."""
_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}
_DEFAULTS = {"num_warps": 4, "num_stages": 3}


@dataclass(frozen=True, slots=True)
class Format:
    """How a worker keeps a model."""

    dtype: torch.dtype = torch.bfloat16
    kv: KvFormat = KvFormat.INT8
    bits: int = 16
    group: int = 0
    has_zeros: bool = False
    int8_rows: bool = False


FORMATS = (
    Format(),
    Format(kv=KvFormat.BF16),
    Format(torch.float16, KvFormat.F16),
    Format(bits=8, group=32, int8_rows=True),
)
QUANTISED = tuple(
    Format(dtype, kv, bits, group, has_zeros, int8_rows)
    for dtype, kv in ((torch.bfloat16, KvFormat.INT8), (torch.float16, KvFormat.F16))
    for bits, int8_rows in ((4, False), (8, False), (8, True))
    for group in GROUPS
    for has_zeros in (False, True)
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, as a compiler sees it."""

    chip: str
    kernel: str
    fields: Mapping[str, object]
    """Types of arguments that are no constants, values of those that are, warps and options."""
    integers: Mapping[str, int]
    """Values of whole numbers that are no constants."""


class MetaWeights:
    """`TritonWeights` without weights: matrices of a format, of a plan's shapes."""

    def __init__(self, plan: Plan, kept: Format) -> None:
        self._shapes, self._kept = plan.parameters, kept

    def vector(self, name: str) -> Tensor:
        return torch.empty(self._shapes[name], device=_META)

    def table(self, names: tuple[str, ...]) -> Tensor:
        rows, columns = self._rows_and_columns(names)
        return torch.empty(rows, columns, dtype=self._kept.dtype, device=_META)

    def matrix(self, names: tuple[str, ...]) -> PackedMatrix:
        kept, (rows, columns) = self._kept, self._rows_and_columns(names)
        is_quantised = kept.bits < 16 and names not in (("embedding",), ("head",))
        if not is_quantised or columns % kept.group:
            return PackedMatrix(self.table(names), 16)
        groups = (rows, columns // kept.group)
        return PackedMatrix(
            torch.empty(rows, columns // 2, dtype=torch.uint8, device=_META)
            if kept.bits == 4
            else torch.empty(rows, columns, dtype=torch.int8, device=_META),
            kept.bits,
            kept.group,
            torch.empty(groups, dtype=kept.dtype, device=_META),
            torch.empty(groups, dtype=torch.int8, device=_META) if kept.has_zeros else None,
        )

    def _rows_and_columns(self, names: tuple[str, ...]) -> tuple[int, int]:
        shapes = [self._shapes[name] for name in names]
        return sum(shape[0] for shape in shapes), shapes[0][1]


class LaunchedForms:
    """Notes launches instead of running them, until the test ends. On a chip, not interpreted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._found: dict[object, Launch] = {}
        self._chip = ""

        def note(kernel: Any, *args: Any, grid: object, warmup: bool, **options: Any) -> None:
            launch = _launch(self._chip, kernel.fn, args, options)
            is_aligned = [value % 16 == 0 for value in launch.integers.values()]
            self._found[launch.chip, launch.kernel, *launch.fields.values(), *is_aligned] = launch

        monkeypatch.setattr(InterpretedFunction, "run", note)
        for module in (dtypes_triton, linear_triton, paged_attention_triton):
            monkeypatch.setattr(module, "INTERPRETED", False)
        monkeypatch.setattr(triton_plan, "TritonWeights", lambda weights, **_: weights)

    def of_model(self, model: BuiltModel, kept: Format) -> list[Launch]:
        """Return what steps of every size launch on every chip."""
        self._found.clear()
        plan = TritonPlan(
            model.plan,
            MetaWeights(model.plan, kept),  # type: ignore[arg-type]
            dtype=kept.dtype,
            max_positions=model.config.max_positions,
            device=_META,
            kv_format=kept.kv,
            int8_rows=kept.int8_rows,
        )
        kv = _kv(model.plan, torch.int8 if kept.kv is KvFormat.INT8 else kept.dtype)
        for chip in CHIPS:
            self._use(chip)
            memory = plan.allocate(_LIMITS)
            for num_tokens, num_sequences, num_outputs in _STEPS:
                plan.run(_step(num_tokens, num_sequences, num_outputs), kv, memory)
        return list(self._found.values())

    def of_sampling(self, vocab_size: int) -> list[Launch]:
        """Return what drawing from one row of logits launches on every chip."""
        self._found.clear()
        scratch, drawn = SamplingScratch.allocate(1, vocab_size, _META), Drawn.allocate(1, 20, _META)
        numbers = torch.empty(1, sampling.NUMBERS, dtype=torch.float64, device=_META)
        integers = torch.empty(1, sampling.INTEGERS, dtype=torch.int64, device=_META)
        entries, biases = _integers(8, 3), torch.empty(8, device=_META)
        for chip in CHIPS:
            self._use(chip)
            logits = torch.empty(1, vocab_size, device=_META)
            sample(logits, numbers, integers, entries, biases, scratch, drawn)
        return list(self._found.values())

    def _use(self, chip: str) -> None:
        self._chip = chip
        for module in (linear_triton, paged_attention_triton):
            self._patch.setattr(module, "chip_of", lambda _: chip)
        self._patch.setattr(torch.version, "hip", "7" if chip.startswith("gfx") else None)


def _integers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device=_META)


def _kv(plan: Plan, dtype: torch.dtype) -> list[LayerKv]:
    """Return every layer's memory in two pages."""
    layers, heads, size = plan.num_layers, plan.num_kv_heads, _LIMITS.page_size
    row_bytes = plan.head_dim * dtype.itemsize + (4 if dtype is torch.int8 else 0)
    pages = torch.empty(2, layers * 2 * heads * size * row_bytes, dtype=torch.uint8, device=_META)
    shape = {"num_layers": layers, "kv_heads": heads, "page_size": size, "head_dim": plan.head_dim}
    return [layer_kv(pages, dtype, layer=layer, **shape) for layer in range(layers)]


def _step(num_tokens: int, num_sequences: int, num_outputs: int) -> TritonStep:
    batch = PagedBatch(
        query_start=_integers(num_sequences + 1),
        context_len=_integers(num_sequences),
        page_table=_integers(num_sequences, 128),
    )
    return TritonStep(
        ids=_integers(num_tokens),
        positions=_integers(num_tokens),
        slots=_integers(num_tokens),
        out_rows=_integers(num_outputs),
        batch=batch,
        is_decode=num_tokens == num_sequences,
        sampling=None,  # type: ignore[arg-type]
    )


@cache
def _parameters(function: Any) -> tuple[tuple[str, bool], ...]:
    return tuple((each.name, each.is_constexpr) for each in JITFunction(function).params)


def _launch(chip: str, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Launch:
    parameters = _parameters(function)
    values = dict(zip((name for name, _ in parameters), args, strict=False))
    names = {name for name, _ in parameters}
    values |= {name: value for name, value in options.items() if name in names}
    fields: dict[str, object] = {**_DEFAULTS}
    fields |= {name: value for name, value in options.items() if name not in names}
    integers = {}
    for name, is_constant in parameters:
        value = values[name]
        if is_constant or value is None:
            fields[name] = value
        elif isinstance(value, Tensor):
            fields[name] = f"*{_NAMES[value.dtype]}"
        else:
            fields[name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int):
                integers[name] = value
    fields.pop("enable_fp_fusion", None)
    return Launch(chip, function.__name__, fields, integers)
