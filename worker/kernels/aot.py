"""Says how a Triton kernel is compiled ahead of time: the one value that `bench.aot` reads from its module.

To register kernels, give the module `<op>_triton.py` a function

    def aot_kernels(chip: str) -> Iterable[AotKernel]

that lists every configuration that is launched on `chip` (one of `CHIPS`), with the tiles, warps and stages
that a launch takes there. Then run `python -m bench.aot --write <op>_triton` and commit `<op>_triton.json`,
which appears beside the module. Nothing else is to be edited: modules are found by that function.

Knows neither Triton nor what a kernel computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHIPS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""What kernels are compiled for: A100, H100/H200, B200, MI300."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AotKernel:
    """One kernel in one configuration."""

    name: str
    """Key in the table, unique in the module and the same on every chip, such as `decode-d128-bf16-int8`."""
    function: Any
    """The `@triton.jit` function."""
    signature: Mapping[str, str]
    """Type of every argument that is no constexpr: `*bf16`, `*i8`, `*fp32`, `i32`, `i64`, `fp32`."""
    constexprs: Mapping[str, object]
    """Value of every constexpr; dtypes as `tl.bfloat16` and the like."""
    aligned: frozenset[str] = field(default_factory=frozenset)
    """Integer arguments that are multiples of 16 in every launch; pointers always are, of 16 bytes."""
    num_warps: int = 4
    num_stages: int = 3
    options: Mapping[str, object] = field(default_factory=dict)
    """Other options of the launch, such as AMD's `matrix_instr_nonkdim`."""
