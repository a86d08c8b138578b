"""Says how keys and values lie inside a page, once for planner, executors, kernels and transfer.

Knows arithmetic only: nothing of devices, of who owns a page, or of what its tokens are.

A page is one contiguous run over all layers, so that moving it is one copy. `KvOrder` says what lies where.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

PAGE_SIZES = (16, 32, 64, 128)
"""Tokens that a page may hold: 2^k blocks of 16."""


class KvFormat(StrEnum):
    """How one number of the KV memory is stored."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    INT8 = "int8"
    """Codes in [-127, 127] and one float32 scale per token, head, layer and side."""

    @property
    def item_bytes(self) -> int:
        """Bytes of one number."""
        return {KvFormat.F32: 4, KvFormat.BF16: 2, KvFormat.F16: 2, KvFormat.INT8: 1}[self]

    @property
    def scale_bytes(self) -> int:
        """Bytes beside the numbers of one row."""
        return 4 if self is KvFormat.INT8 else 0


class KvOrder(StrEnum):
    """In what order the numbers of a page lie. It changes no size."""

    ROWS = "rows"
    """`[num_layers, 2 (keys, values), num_kv_heads, page_size, head_dim]`, row-major, and behind them the
    scales of int8 without the last dimension: the torch executor's, in f32, and the GPU kernels'."""
    PANELS = "panels"
    """What the native executor multiplies; `worker/executors/native/kv_page.h` says it exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Shape of one page. A *row* is the `head_dim` numbers of one token, head, layer and side."""

    format: KvFormat
    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    """Tokens in a page."""
    order: KvOrder = KvOrder.ROWS

    @property
    def page_rows(self) -> int:
        """Rows in a page; the stride between the same row of two neighbouring pages."""
        return self.num_layers * 2 * self.num_kv_heads * self.page_size

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers.

        Worked numbers: 30 layers, 3 heads of 64, 16 tokens: f32 737,280; bf16 368,640; int8 195,840.
        """
        return self.page_rows * (self.head_dim * self.format.item_bytes + self.format.scale_bytes)

    @property
    def head_rows(self) -> int:
        """Stride in rows between two heads of the same token, layer and side; of order ROWS."""
        return self.page_size

    def key_row(self, layer: int) -> int:
        """Return the row inside a page where the keys of `layer` begin (head 0, token 0); of order ROWS."""
        return layer * 2 * self.num_kv_heads * self.page_size

    def value_row(self, layer: int) -> int:
        """Return the row inside a page where the values of `layer` begin; of order ROWS."""
        return (layer * 2 + 1) * self.num_kv_heads * self.page_size

    @property
    def digest(self) -> str:
        """16 hex digits; pages may be exchanged between workers only where it is the same."""
        sizes = (self.num_layers, self.num_kv_heads, self.head_dim, self.page_size)
        fields = (self.format, self.order, *sizes)
        preimage = "quire.kv_layout.v2:" + ":".join(str(field) for field in fields)
        return hashlib.sha256(preimage.encode()).hexdigest()[:16]
