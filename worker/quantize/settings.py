"""What a run of the quantiser is asked for.

Knows which values there are; knows nothing of models.
"""

from dataclasses import dataclass
from enum import StrEnum

from worker.quantize.errors import QuantizeError

GROUPS = (32, 64, 128)
"""Columns that may share a scale."""
WIDTHS = {"int4": 4, "int8": 8}
"""Name of a format -> bits of a code."""


class Method(StrEnum):
    """How codes are found."""

    RTN = "rtn"
    """Nearest value of each group's grid."""
    AWQ = "awq"
    """Columns that meet large activations are scaled up first (Lin et al. 2023)."""
    GPTQ = "gptq"
    """Columns still to come make up for the error of those before (Frantar et al. 2022)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeSettings:
    """Settings of one run."""

    bits: int
    """4 or 8."""
    group: int
    """Columns that share a scale and a zero point: 32, 64 or 128."""
    method: Method
    has_static_activations: bool = False
    """Whether one scale for 8-bit inputs of each matrix is measured too, for servers that want fixed ones."""

    @property
    def is_calibrated(self) -> bool:
        """Whether the model has to be run on text."""
        return self.method is not Method.RTN or self.has_static_activations

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise QuantizeError(f"--group {self.group}: choose one of {', '.join(map(str, GROUPS))}")
        if self.bits not in WIDTHS.values():
            raise QuantizeError(f"--to int{self.bits}: choose one of {', '.join(WIDTHS)}")
