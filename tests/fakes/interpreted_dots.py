"""Dots of Triton's interpreter in one order of summation, whatever the tile and the machine.

A device sums every row of a dot alike. The interpreter leaves that to NumPy's matrix library, which does not:
without this, bits in a batch would differ for a reason that no kernel has.
"""

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def use_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum dots over K from first to last, until the test ends."""
    monkeypatch.setattr(InterpreterBuilder, "create_dot", _dot)


def _dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_: object) -> object:
    left, right = (x.data.astype(d.data.dtype) for x in (a, b))
    total = np.zeros_like(d.data)
    for k in range(left.shape[1]):
        total += left[:, k, None] * right[k]
    return TensorHandle(total + d.data, d.dtype.scalar)
