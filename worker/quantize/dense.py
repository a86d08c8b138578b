"""Runs operations of a plan on one whole sequence in torch, without pages: what calibration needs.

Knows what each operation computes (see `worker.plan.op`); knows nothing of methods or files.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence

import torch
from torch import Tensor

from worker.kernels.act_mul_torch import gelu_tanh_mul, silu_mul
from worker.kernels.rms_norm_torch import rms_norm
from worker.kernels.soft_cap_torch import soft_cap
from worker.plan.op import Activation, Op, OpKind, Plan, RopeTable
from worker.quantize.layers import matrices_of

Slots = MutableMapping[int, Tensor]
"""Slot -> [tokens, width] float32."""


class DenseRunner:
    """Runs operations on sequences that begin at position 0."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kv: tuple[Tensor, Tensor] | None = None

    def run(self, ops: Sequence[Op], slots: Slots, weights: Mapping[str, Tensor]) -> None:
        """Compute `ops` in order into `slots`; embeddings and output rows are not among them.

        Args:
            ops: Operations of one layer, from its first on.
            slots: Holds what they read; gets what they write.
            weights: Every parameter that they name.
        """
        for op in ops:
            (y,) = op.outputs
            slots[y] = self._compute(op, [slots[x] for x in op.inputs], weights)

    def _compute(self, op: Op, inputs: Sequence[Tensor], weights: Mapping[str, Tensor]) -> Tensor:
        x = inputs[0]
        if op.kind is OpKind.RMS_NORM:
            return _filled(x, lambda out: rms_norm(x, weights[op.weights[0]], out, eps=op.number("eps")))
        if op.kind is OpKind.LINEAR:
            return _linear(op, x, weights)
        if op.kind is OpKind.QK_NORM:
            return self._qk_norm(op, x, weights)
        if op.kind is OpKind.ROPE_STORE:
            return self._rope_store(op, x)
        if op.kind is OpKind.PAGED_ATTENTION:
            return self._attention(op, x)
        if op.kind is OpKind.ACT_MUL:
            apply = silu_mul if op.integer("activation") == Activation.SILU else gelu_tanh_mul
            out = torch.empty(len(x), x.shape[1] // 2)
            apply(x, out)
            return out
        if op.kind is OpKind.ADD:
            return x + inputs[1]
        if op.kind is OpKind.SCALE:
            return x * op.number("factor")
        if op.kind is OpKind.SOFT_CAP:
            return _filled(x, lambda out: soft_cap(x, out, cap=op.number("cap")))
        raise AssertionError(f"{op.kind} is no part of a layer")

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split a qkv slot into q, k and v, [tokens, heads, head_dim] each."""
        sizes = (self._plan.num_heads, self._plan.num_kv_heads, self._plan.num_kv_heads)
        q, k, v = x.view(len(x), sum(sizes), self._plan.head_dim).split(sizes, dim=1)
        return q, k, v

    def _qk_norm(self, op: Op, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        q, k, v = self._heads(x)
        q_weight, k_weight = (weights[name] for name in op.weights)
        normed = []
        for part, weight in ((q, q_weight), (k, k_weight)):
            normed.append(torch.empty_like(part))
            rms_norm(part, weight, normed[-1], eps=op.number("eps"))
        return torch.cat([*normed, v], dim=1).view(x.shape)

    def _rope_store(self, op: Op, x: Tensor) -> Tensor:
        cos, sin = _rotation(self._plan.ropes[op.integer("rope")], len(x))
        q, k, v = self._heads(x)
        self._kv = _rotated(k, cos, sin), v
        return _rotated(q, cos, sin).reshape(len(x), -1)

    def _attention(self, op: Op, x: Tensor) -> Tensor:
        assert self._kv is not None, "rope_store comes before attention"
        keys, values = (
            part.repeat_interleave(self._plan.num_heads // self._plan.num_kv_heads, dim=1)
            for part in self._kv
        )
        q = x.view(len(x), self._plan.num_heads, -1)
        scores = torch.einsum("qhd,khd->hqk", q, keys) * op.number("scale")
        if (cap := op.number("soft_cap")) != 0:
            scores = cap * torch.tanh(scores / cap)
        distance = torch.arange(len(x)).unsqueeze(1) - torch.arange(len(x))
        window = op.integer("window") or len(x)
        scores.masked_fill_((distance < 0) | (distance >= window), -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).reshape(len(x), -1)


def _filled(x: Tensor, write: Callable[[Tensor], None]) -> Tensor:
    out = torch.empty_like(x)
    write(out)
    return out


def _linear(op: Op, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    matrices = matrices_of(op)
    biases = op.weights[len(matrices) :]
    y = x @ torch.cat([weights[name] for name in matrices]).t()
    return y + torch.cat([weights[name] for name in biases]) if biases else y


def _rotation(rope: RopeTable, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, [tokens, 1, head_dim / 2] each."""
    frequencies = torch.tensor(rope.inverse_frequencies, dtype=torch.float32)
    angles = torch.arange(num_tokens, dtype=torch.float32).view(-1, 1, 1) * frequencies
    return angles.cos() * rope.magnitude, angles.sin() * rope.magnitude


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
