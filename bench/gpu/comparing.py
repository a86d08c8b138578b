"""What it means that numbers or bits are those of a reference.

Knows tensors; knows nothing of what made them.
"""

import torch
from torch import Tensor

_RELATIVE = 2.0**-6
"""Two roundings to bfloat16, relative to the largest number that is compared."""


class BitsDiffer(AssertionError):
    """Numbers are right and their last bits are not the promised ones: what is timed is still the work."""


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    """Raise AssertionError where numbers are further off than two roundings, or NaN."""
    ours, theirs = ours.float(), theirs.float()
    assert not ours.isnan().any(), "a row was not written, or is NaN"
    largest = float(theirs.abs().max())
    worst = float((ours - theirs).abs().max())
    assert worst <= _RELATIVE * largest, f"differs by {worst:.3g} where the largest number is {largest:.3g}"


def assert_same_bits(ours: Tensor, theirs: Tensor, text: str) -> None:
    """Raise BitsDiffer with `text` where a device gives other bits."""
    # The interpreter's sums are NumPy's, in an order of its own.
    if ours.device.type == "cuda" and not torch.equal(ours, theirs):
        raise BitsDiffer(text)
