"""Products of dense weights by the vendor's library, where that is asked for instead of `packed_linear`.

The library chooses how K is cut and added by the number of rows: **not batch-invariant**, so what runs on it
is marked (`ModelProfile.is_batch_invariant`). The product is rounded to the type of x, and again with a bias.

Knows torch alone.
"""

import torch
from torch import Tensor

from worker.kernels.packed_matrix_torch import PackedMatrix


def vendor_linear(x: Tensor, weight: PackedMatrix, out: Tensor, *, bias: Tensor | None = None) -> None:
    """Write x @ W^T (+ bias), allocating nothing.

    Args:
        x: [rows, in] in the type of the weight.
        weight: Dense.
        out: [rows, out], the type of x.
        bias: [out] float32.
    """
    assert weight.scales is None, "the library multiplies no codes"
    torch.mm(x, weight.codes.t(), out=out)
    if bias is not None:
        out.add_(bias)
