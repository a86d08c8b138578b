"""Reference of `rms_norm` in torch (see `rms_norm` for the contract).

Knows torch alone.
"""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, out: Tensor, *, eps: float) -> None:
    """Normalise the last dimension of x into `out`."""
    if x.dtype is not torch.float32:
        wide = torch.empty_like(x, dtype=torch.float32)
        rms_norm(x.float(), weight.float(), wide, eps=eps)
        out.copy_(wide)
        return
    mean_square = (x * x).mean(-1, keepdim=True)
    torch.div(x, mean_square.add_(eps).sqrt_(), out=out)
    out.mul_(weight)
