"""`page_copy` in Triton (see `page_copy` for the contract).

Knows torch and Triton alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker.kernels.aot import AotKernel

_WORDS = 4096
"""32-bit words that one program copies: 16 KiB, four 16-byte loads a thread in flight at 8 warps."""
_NUM_WARPS = 8


@triton.jit
def page_copy_kernel(pages, sources, targets, page_words, WORDS: tl.constexpr):
    """Copy one piece of one page. pages: [num_pages, page_words] int32."""
    pair = tl.program_id(0)
    source = tl.load(sources + pair).to(tl.int64) * page_words
    target = tl.load(targets + pair).to(tl.int64) * page_words
    words = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = words < page_words
    tl.store(pages + target + words, tl.load(pages + source + words, mask=inside), mask=inside)


def page_copy(pages: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy page `sources[i]` into page `targets[i]` for every i."""
    words = pages.view(torch.int32)
    grid = (len(sources), triton.cdiv(words.shape[1], _WORDS))
    page_copy_kernel[grid](words, sources, targets, words.shape[1], WORDS=_WORDS, num_warps=_NUM_WARPS)


def aot_kernels(chip: str) -> Iterator[AotKernel]:
    """Yield the one configuration, the same on every chip."""
    yield AotKernel(
        name="copy",
        function=page_copy_kernel,
        signature={"pages": "*i32", "sources": "*i32", "targets": "*i32", "page_words": "i32"},
        constexprs={"WORDS": _WORDS},
        num_warps=_NUM_WARPS,
    )
