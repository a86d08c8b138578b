"""What every measurement is given: device, clock, shapes, and the rates that bounds are made of.

Knows torch; knows nothing of kernels of ours.
"""

from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from bench.gpu.arithmetic import product_operations
from bench.gpu.sizes import Sizes
from bench.gpu.timing import Timer


@dataclass(frozen=True, kw_only=True)
class BenchContext:
    """One run's device and shapes; rates are measured when they are first asked for."""

    device: torch.device
    timer: Timer
    sizes: Sizes
    generator: torch.Generator = field(repr=False)

    @cached_property
    def copy_rate(self) -> float:
        """Bytes per second that a copy reads and writes together."""
        source = torch.zeros(self.sizes.copy_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2.0 * int(source.nbytes) / self.timer.kernels([lambda: target.copy_(source)])

    @cached_property
    def matrix_rate(self) -> float:
        """Operations per second of the vendor's bfloat16 product."""
        size = self.sizes.matrix
        x, y = (self.noise(size, size) for _ in range(2))
        out = torch.empty_like(x)
        seconds = self.timer.kernels([lambda: torch.matmul(x, y, out=out)])
        return product_operations(num_rows=size, out_features=size, in_features=size) / seconds

    @cached_property
    def int8_rate(self) -> float:
        """Operations per second of the vendor's int8 product, at the shape of the row that it bounds."""
        sizes = self.sizes
        rows, features = sizes.many_rows, sizes.features
        x = self.integers(-128, 128, rows, features)
        weights = [self.integers(-128, 128, features, features) for _ in range(sizes.copies)]
        seconds = self.timer.kernels([partial(torch._int_mm, x, w.t()) for w in weights])
        return product_operations(num_rows=rows, out_features=features, in_features=features) / seconds

    def noise(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Return normal numbers on the device."""
        return torch.randn(shape, generator=self.generator, device=self.device).to(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int8) -> Tensor:
        """Return integers from `low` to below `high` on the device."""
        return torch.randint(
            low, high, shape, generator=self.generator, device=self.device, dtype=torch.int16
        ).to(dtype)

    def empty(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Return memory on the device."""
        return torch.empty(shape, dtype=dtype, device=self.device)
