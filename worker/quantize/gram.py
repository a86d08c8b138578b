"""What a product's inputs looked like over the calibration text: enough to weigh any error of its matrix.

Knows sums alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Gram:
    """Sums over rows of x. With them ||(W - V) x||^2 summed over all rows is `error(W - V)`."""

    products: Tensor
    """[in, in] float32: sum of x^T x."""
    magnitudes: Tensor
    """[in] float32: sum of |x|."""
    num_rows: int = 0

    @classmethod
    def empty(cls, width: int) -> "Gram":
        """Return the sums over no rows."""
        return cls(torch.zeros(width, width), torch.zeros(width))

    def add(self, x: Tensor) -> None:
        """Add rows. x: [rows, in] float32."""
        self.products.addmm_(x.t(), x)
        self.magnitudes.add_(x.abs().sum(0))
        self.num_rows += len(x)

    def scaled(self, factors: Tensor) -> "Gram":
        """Return the sums as they are once every row is multiplied by `factors` [in]."""
        products = self.products * factors.unsqueeze(0) * factors.unsqueeze(1)
        return Gram(products, self.magnitudes * factors.abs(), self.num_rows)

    def error(self, difference: Tensor) -> float:
        """Return the squared error of the products with a matrix that is off by `difference` [out, in]."""
        return float(((difference @ self.products) * difference).sum(dtype=torch.float64))
