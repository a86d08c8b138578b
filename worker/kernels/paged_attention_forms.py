"""Which forms of attention's kernels are compiled ahead of time, of all that models and workers may ask for.

A form is a size of head, the types of q and of KV, a window and a soft cap or not, a size of page and how
many query heads share a key-value head. Compiled are

- every size of head over KV in bfloat16 and in int8, as most models ask for it (pages of 16, four heads): of
  the ragged kernel with and without window and cap, because its tiles take up to all registers that a thread
  may have; of the decode kernel so with heads of 256, which come near, and of smaller ones without;
- of all other forms as many as it takes for any two values to meet, the chip being one of them (`covering`).

float16 stands for itself in such pairs alone: the instructions are bfloat16's, one for one.

Heads that share a key-value head enter by the rows of a tile, so one, a number that is no power of two and
one above a decode tile's rows stand for all. How many key-value heads and layers there are enters by strides.

Knows names and numbers alone; `paged_attention_triton` makes kernels of them.
"""

from dataclasses import dataclass
from functools import cache

from worker.kernels.aot import CHIPS
from worker.kernels.covering import Row, covering
from worker.kernels.paged_attention_tuning import Kernel

HEAD_DIMS = (64, 80, 96, 128, 256)
FORMATS = (("bf16", "bf16"), ("bf16", "i8"), ("fp16", "fp16"), ("fp16", "i8"))
"""Types of q and of KV."""
MASKS = ((False, False), (True, False), (False, True), (True, True))
"""Whether there is a window, and a cap."""
PAGE_SIZES = (16, 32, 64, 128)
GROUPS = (4, 1, 7, 32)
"""Query heads that share a key-value head."""


@dataclass(frozen=True, slots=True)
class Form:
    """One of them."""

    head_dim: int
    types: tuple[str, str]
    """Of q and of KV."""
    mask: tuple[bool, bool] = MASKS[0]
    """Whether there is a window, and a cap."""
    page_size: int = PAGE_SIZES[0]
    group: int = GROUPS[0]

    @property
    def dtype(self) -> str:
        """Type of q, as Triton names it."""
        return self.types[0]

    @property
    def kv_dtype(self) -> str:
        """Type of KV."""
        return self.types[1]

    @property
    def has_window(self) -> bool:
        """Whether a row sees its last keys alone."""
        return self.mask[0]

    @property
    def has_cap(self) -> bool:
        """Whether scores are bent."""
        return self.mask[1]

    @property
    def name(self) -> str:
        """Key in the table, such as `d128-bf16-i8-window-p64-g7`; what most models have is left out."""
        return (
            f"d{self.head_dim}-{self.dtype}-{self.kv_dtype}"
            + "-window" * self.has_window
            + "-cap" * self.has_cap
            + f"-p{self.page_size}" * (self.page_size != PAGE_SIZES[0])
            + f"-g{self.group}" * (self.group != GROUPS[0])
        )

    @property
    def merge_name(self) -> str:
        """Key of the merge of its splits, which many forms share."""
        return f"d{self.head_dim}-{self.dtype}" + "-window" * self.has_window


@cache
def forms(chip: str, kernel: Kernel) -> tuple[Form, ...]:
    """Return all that are compiled of a kernel for a chip."""
    masked = HEAD_DIMS if kernel == "ragged" else HEAD_DIMS[-1:]
    masks = [
        (head_dim, mask) for head_dim in HEAD_DIMS for mask in MASKS if head_dim in masked or not any(mask)
    ]
    common: list[Row] = [
        (each, head_dim, types, mask, PAGE_SIZES[0], GROUPS[0])
        for each in CHIPS
        for head_dim, mask in masks
        for types in FORMATS[:2]
    ]
    rows = covering(CHIPS, HEAD_DIMS, FORMATS, MASKS, PAGE_SIZES, GROUPS, taken=common)
    return tuple(Form(*form) for each, *form in rows if each == chip)
