"""Reference of `gather_rows` and `gather_shard` in torch (see `gather_rows` for the contract).

Knows torch alone.
"""

from torch import Tensor


def gather_rows(x: Tensor, rows: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
    """Write the rows of x that `rows` names, times a factor."""
    out.copy_(x.index_select(0, rows.long()).float().mul_(factor))


def gather_shard(x: Tensor, rows: Tensor, out: Tensor, *, first: int) -> None:
    """Write the rows of a table that `rows` names, of which x is the part from `first` on; else zeros."""
    own = rows.long() - first
    is_elsewhere = (own < 0) | (own >= len(x))
    out.copy_(x.index_select(0, own.masked_fill(is_elsewhere, 0)).masked_fill(is_elsewhere.unsqueeze(1), 0))
