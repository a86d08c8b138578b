"""Reference of `act_mul` in torch (see `act_mul` for the contract).

Knows torch alone.
"""

import torch
from torch import Tensor

from worker.kernels.act_mul import GELU_CUBIC, GELU_SCALE


def silu_mul(x: Tensor, out: Tensor) -> None:
    """Write silu(left half of x) * right half into `out`.

    Spelled out, because torch's own silu takes another exponential for the elements left over at the end of
    a vector loop, which is at other rows when the batch is another; `exp` by itself does not.
    """
    gate, up = x.chunk(2, dim=-1)
    torch.neg(gate, out=out)
    out.exp_().add_(1)
    torch.div(gate, out, out=out)
    out.mul_(up)


def gelu_tanh_mul(x: Tensor, out: Tensor) -> None:
    """Write gelu(left half of x) * right half into `out`; spelled out for the same reason."""
    gate, up = x.chunk(2, dim=-1)
    torch.mul(gate, gate, out=out)
    out.mul_(gate).mul_(GELU_CUBIC).add_(gate).mul_(GELU_SCALE)
    out.tanh_().add_(1).mul_(gate).mul_(0.5)
    out.mul_(up)
