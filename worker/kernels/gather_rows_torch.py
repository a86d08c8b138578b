"""Reference of `gather_rows` in torch (see `gather_rows` for the contract).

Knows torch alone.
"""

from torch import Tensor


def gather_rows(x: Tensor, rows: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
    """Write the rows of x that `rows` names, times a factor."""
    out.copy_(x.index_select(0, rows.long()).float().mul_(factor))
