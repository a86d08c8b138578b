"""GPTQ: rounds columns one after the other and lets those still to come make up for the error.

Knows one matrix and the sums over its inputs; knows nothing of models.

Source: Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", Algorithm 1 (blocks of columns, the Cholesky factor of the inverse Hessian, damping). Groups
are fitted when their first column is reached, to what the columns before have made of them.
"""

import torch
from torch import Tensor

from worker.quantize.errors import QuantizeError
from worker.quantize.gram import Gram
from worker.quantize.grid import Grid, fit
from worker.quantize.rounding import Rounded

_DAMPING = 0.01
"""Part of the mean of the Hessian's diagonal that is added to it; tenfold where that is too little."""
_MOST_DAMPING = 100.0
_BLOCK = 128
"""Columns after which the rest of the matrix is brought up to date at once; groups do not cross its edges."""


def round_gptq(weight: Tensor, gram: Gram, *, bits: int, group: int) -> Rounded:
    """Return codes of a matrix, the error of its product with the calibration inputs kept small.

    Args:
        weight: [out, in] float32.
        gram: Sums over the inputs.
        bits: Of a code.
        group: Columns that share a scale; it divides `in`.
    """
    rest = weight.clone()
    rows, columns = rest.shape
    # An input that was always zero says nothing of its column, which is rounded as it is.
    is_dead = gram.products.diagonal() == 0
    factor = _inverse_factor(gram.products.double(), is_dead).to(torch.float32)
    codes = torch.empty_like(rest)
    scales, zeros = (torch.empty(rows, columns // group) for _ in range(2))
    for start in range(0, columns, _BLOCK):
        stop = min(start + _BLOCK, columns)
        block, errors = rest[:, start:stop].clone(), torch.empty(rows, stop - start)
        for place in range(stop - start):
            column = start + place
            if column % group == 0:
                grid = fit(block[:, place : place + group].unsqueeze(1), bits)
                scales[:, column // group] = grid.scales[:, 0]
                zeros[:, column // group] = grid.zeros[:, 0]
            code = grid.nearest(block[:, place].view(rows, 1, 1))
            codes[:, column] = code.view(rows)
            errors[:, place] = (block[:, place] - grid.values(code).view(rows)) / factor[column, column]
            block[:, place + 1 :].addr_(errors[:, place], factor[column, column + 1 : stop], alpha=-1)
        rest[:, stop:].addmm_(errors, factor[start:stop, stop:], alpha=-1)
    return Rounded(codes.to(torch.uint8), Grid(scales, zeros, bits))


def _inverse_factor(hessian: Tensor, is_dead: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the damped Hessian's inverse, [in, in] float64.

    Raises:
        QuantizeError: The Hessian is not finite: something overflowed on the calibration text.
    """
    hessian = hessian.clone()
    hessian.diagonal()[is_dead] = 1
    mean = hessian.diagonal().mean()
    damping = _DAMPING
    while damping < _MOST_DAMPING:
        hessian.diagonal().add_(damping * mean)
        lower, failed = torch.linalg.cholesky_ex(hessian)
        if not failed:
            inverse = torch.cholesky_inverse(lower)
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not failed:
                return upper
        damping *= 10
    raise QuantizeError(
        "--method gptq: inputs are not finite numbers on this --calibration text; take --method awq or rtn"
    )
