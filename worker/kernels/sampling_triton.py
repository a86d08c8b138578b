"""Launches the kernels of `sampling` (see there for the contract).

Knows torch and Triton alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.kernels.aot import AotKernel
from worker.kernels.sampling import STATES
from worker.kernels.sampling_draws_triton import draw_row_kernel, score_row_kernel
from worker.kernels.sampling_weights_triton import (
    adjust_row_kernel,
    collect_row_kernel,
    read_row_kernel,
    weigh_row_kernel,
)

_BLOCK = 4096
"""Logits that a program reads at once. Part of the numerics: sums go block by block."""
_NUM_WARPS = 8
_ENTRIES = 256
_ENTRY_WARPS = 4


@dataclass(frozen=True, slots=True, eq=False)
class SamplingScratch:
    """Memory that a draw works in, made once for the most rows of a step."""

    work: Tensor
    """[rows, vocab] float32."""
    ids: Tensor
    """[rows, vocab] int32."""
    state: Tensor
    """[rows, STATES] float64."""
    cuts: Tensor
    """[rows] float32."""

    @classmethod
    def allocate(cls, rows: int, vocab: int, device: torch.device) -> "SamplingScratch":
        """Return scratch for up to so many rows: 8 bytes per logit."""
        return cls(
            torch.empty(rows, vocab, dtype=torch.float32, device=device),
            torch.empty(rows, vocab, dtype=torch.int32, device=device),
            torch.empty(rows, STATES, dtype=torch.float64, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Where results go; see the contract."""

    token_ids: Tensor
    failed: Tensor
    logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    @classmethod
    def allocate(cls, rows: int, max_top: int, device: torch.device) -> "Drawn":
        """Return room for results, all zero."""
        return cls(
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.float32, device=device),
            torch.zeros(rows, max_top, dtype=torch.int32, device=device),
            torch.zeros(rows, max_top, dtype=torch.float32, device=device),
        )


def sample(
    logits: Tensor,
    numbers: Tensor,
    integers: Tensor,
    entries: Tensor,
    biases: Tensor,
    scratch: SamplingScratch,
    drawn: Drawn,
) -> None:
    """Draw a token for each row of logits. Launches are the same for all parameters: they can be captured."""
    rows, vocab = logits.shape
    if not rows:
        return
    grid, s = (rows,), scratch
    options = {"BLOCK": _BLOCK, "num_warps": _NUM_WARPS, "enable_fp_fusion": False}
    read_row_kernel[grid](logits, integers, s.work, s.state, drawn.failed, vocab, **options)
    adjust_row_kernel[grid](
        s.work,
        numbers,
        integers,
        entries,
        biases,
        vocab,
        BLOCK=_ENTRIES,
        num_warps=_ENTRY_WARPS,
        enable_fp_fusion=False,
    )
    weigh_row_kernel[grid](
        s.work, numbers, integers, s.state, drawn.token_ids, drawn.failed, s.cuts, vocab, **options
    )
    collect_row_kernel[grid](s.work, s.ids, s.state, s.cuts, vocab, **options)
    draw_row_kernel[grid](
        s.work, s.ids, numbers, integers, s.state, s.cuts, drawn.token_ids, vocab, **options
    )
    score_row_kernel[grid](
        logits,
        integers,
        s.state,
        drawn.failed,
        drawn.token_ids,
        drawn.logprobs,
        drawn.top_ids,
        drawn.top_logprobs,
        vocab,
        drawn.top_ids.shape[1],
        **options,
    )


_SIGNATURES = {
    **dict.fromkeys(("logits", "work", "biases", "cuts", "logprobs", "top_logprobs"), "*fp32"),
    **dict.fromkeys(("ids", "entries", "token_ids", "failed", "top_ids"), "*i32"),
    **dict.fromkeys(("numbers", "state"), "*fp64"),
    "integers": "*i64",
    **dict.fromkeys(("vocab", "max_top"), "i32"),
}


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield the six kernels, the same on every chip."""
    for function in (
        read_row_kernel,
        adjust_row_kernel,
        weigh_row_kernel,
        collect_row_kernel,
        draw_row_kernel,
        score_row_kernel,
    ):
        is_small = function is adjust_row_kernel
        yield AotKernel(
            name=function.__name__.removesuffix("_kernel").replace("_", "-"),
            function=function,
            signature={name: _SIGNATURES[name] for name in function.arg_names if name != "BLOCK"},
            constexprs={"BLOCK": _ENTRIES if is_small else _BLOCK},
            aligned=frozenset({"vocab"}),
            num_warps=_ENTRY_WARPS if is_small else _NUM_WARPS,
        )
