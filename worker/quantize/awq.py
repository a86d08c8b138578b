"""AWQ: scales columns that meet large activations up before rounding, and takes the factors out elsewhere.

Knows one product, the sums over its inputs, and where a factor can be folded; knows nothing of models.

Source: Lin et al. 2023, "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration",
section 4: s = mean(|x|) ** a, a by grid search over the error of the product. Where query heads share a
key-value head they share its factors, made of the mean over those heads.
"""

from collections.abc import MutableMapping, Sequence

import torch
from torch import Tensor

from worker.quantize.gram import Gram
from worker.quantize.layers import Fold
from worker.quantize.rounding import round_nearest

_STEPS = 20
"""Exponents tried: 0, 1/20, ... 19/20."""
_LEAST = 1e-4
"""Mean magnitudes below this count as this: a column that nothing meets gets no factor without bound."""


def scale_columns(
    weights: MutableMapping[str, Tensor],
    matrices: Sequence[str],
    gram: Gram,
    fold: Fold,
    *,
    bits: int,
    group: int,
) -> Gram:
    """Scale the columns of `matrices` and fold the factors; the layer computes what it did.

    Args:
        weights: The layer's; changed.
        matrices: Names of the matrices of one product.
        gram: Sums over its inputs as they were.
        fold: Where the factors go.
        bits: Of a code.
        group: Columns that share a scale.

    Returns:
        The sums over the inputs as they are now.
    """
    weight = torch.cat([weights[name] for name in matrices])
    magnitudes = (gram.magnitudes / gram.num_rows).view(-1, fold.num_repeats, fold.block)
    shared = magnitudes.mean(1, keepdim=True).clamp_(min=_LEAST)
    best, least = torch.ones_like(shared), torch.inf
    for step in range(_STEPS):
        factors = shared ** (step / _STEPS)
        factors /= (factors.max() * factors.min()).sqrt()
        columns = factors.expand_as(magnitudes).reshape(-1)
        rounded = round_nearest(weight * columns, bits=bits, group=group).values() / columns
        error = gram.error(rounded - weight)
        if error < least:
            best, least = factors, error
    columns = best.expand_as(magnitudes).reshape(-1)
    for name in matrices:
        weights[name] = weights[name] * columns
    _divide_rows(weights, fold, best.reshape(-1))
    return gram.scaled(1 / columns)


def _divide_rows(weights: MutableMapping[str, Tensor], fold: Fold, factors: Tensor) -> None:
    """Divide what makes the columns by their factors. factors: [rows]."""
    made = weights[fold.parameter]
    weights[fold.parameter] = made / (factors if made.dim() == 1 else factors.unsqueeze(1))
    if fold.bias is not None:
        weights[fold.bias] = weights[fold.bias] / factors
