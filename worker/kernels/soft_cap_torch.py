"""Reference of `soft_cap` in torch (see `soft_cap` for the contract).

Knows torch alone.
"""

import torch
from torch import Tensor


def soft_cap(x: Tensor, out: Tensor, *, cap: float) -> None:
    """Write cap * tanh(x / cap) into `out`."""
    torch.div(x, cap, out=out)
    out.tanh_().mul_(cap)
