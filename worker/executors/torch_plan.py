"""Binds a plan to weights in torch and runs it.

Knows what each kind of operation is in torch; knows nothing of batches beyond the tensors of a `TorchStep`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.domain.kv_layout import KvLayout
from worker.executors.torch_ranks import Ranks
from worker.executors.torch_step import TorchStep
from worker.executors.weights.loader import WeightSource
from worker.kernels.act_mul_torch import gelu_tanh_mul, silu_mul
from worker.kernels.linear_torch import TILES, Matrix, prove_tiles
from worker.kernels.paged_attention_torch import paged_attention, prove_query_tiles
from worker.kernels.rms_norm_torch import rms_norm
from worker.kernels.rope_store_torch import rope_store
from worker.kernels.soft_cap_torch import soft_cap
from worker.plan.arena import Arena, pack
from worker.plan.op import Activation, Op, OpKind, Plan, RopeTable

_MAX_CACHED_VIEWS = 64


@dataclass(frozen=True, slots=True)
class _Context:
    """What operations of one step share."""

    step: TorchStep
    slots: Sequence[Tensor]
    cos: Sequence[Tensor]
    """By rope table: [T, head_dim], of the step's positions."""
    sin: Sequence[Tensor]
    keys: Sequence[Tensor]
    """By layer: [rows, head_dim], a view of the KV memory."""
    values: Sequence[Tensor]


_Run = Callable[[_Context], None]


class TorchPlan:
    """A plan with its weights, ready to run."""

    def __init__(
        self, plan: Plan, weights: WeightSource, *, max_positions: int, ranks: Ranks | None = None
    ) -> None:
        """Args:
        plan: The whole model's, or one of `ranks`' share of it.
        weights: What the plan reads.
        max_positions: Tokens of the longest context.
        ranks: Whom operations of a share exchange with.
        """
        self._plan = plan
        self._ranks = ranks
        self._weights = weights
        self._matrices: list[Matrix] = []
        self._tensors: dict[str, Tensor] = {}
        tables = [_rope_table(rope, max_positions) for rope in plan.ropes]
        self._cos, self._sin = zip(*tables, strict=True)
        self._runs = [self._bind(op) for op in plan.ops]
        self.row_tiles, linear_bits = prove_tiles(self._matrices)
        self.query_tiles, attention_bits = prove_query_tiles(
            heads_per_group=plan.num_heads // plan.num_kv_heads, head_dim=plan.head_dim
        )
        self.numerics = linear_bits + attention_bits
        """Hex digits of the bits that this machine's matrix products give on fixed inputs."""
        self._arena: Arena | None = None
        self._buffer = torch.empty(0)
        self._packed_rows = 0
        self._views: dict[tuple[int, int], list[Tensor]] = {}

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that weights take."""
        tensors = sum(tensor.nbytes for tensor in (*self._tensors.values(), *self._cos, *self._sin))
        return int(tensors) + sum(matrix.num_bytes for matrix in self._matrices)

    def agree(self) -> None:
        """Keep the tiles that all ranks have proven: what they exchange are padded rows."""
        assert self._ranks is not None
        proven = torch.tensor([[float(size in self.row_tiles) for size in TILES]])
        votes = torch.empty_like(proven)
        self._ranks.sum(proven, votes)
        everybodys = (votes[0] == self._ranks.size).tolist()
        # Single rows are right everywhere.
        self.row_tiles = tuple(size for size, is_kept in zip(TILES, everybodys, strict=True) if is_kept) or (
            1,
        )

    def run(self, step: TorchStep, kv: Tensor, layout: KvLayout) -> NDArray[np.float32]:
        """Run every operation and return the logits [O, vocab].

        Args:
            step: Index tensors of the batch.
            kv: [rows, head_dim] float32, all pages and the page of zeros.
            layout: How pages are laid out.
        """
        num_tokens, num_outputs = sum(step.token_tiles), sum(step.output_tiles)
        slots = self._slots(num_tokens, num_outputs)
        logits = torch.empty(num_outputs, self._plan.slots[self._plan.output].width)
        slots[self._plan.output] = logits
        context = _Context(
            step,
            slots,
            [table.index_select(0, step.positions) for table in self._cos],
            [table.index_select(0, step.positions) for table in self._sin],
            [kv[layout.key_row(layer) :] for layer in range(layout.num_layers)],
            [kv[layout.value_row(layer) :] for layer in range(layout.num_layers)],
        )
        for run in self._runs:
            run(context)
        array: NDArray[np.float32] = logits[: step.num_outputs].numpy()
        return array

    def _slots(self, num_tokens: int, num_outputs: int) -> list[Tensor]:
        """Return a view of the arena for each slot; the arena grows to the largest step seen."""
        key = (num_tokens, num_outputs)
        if num_tokens > self._packed_rows:
            self._arena = pack(self._plan, num_tokens=num_tokens, num_outputs=num_tokens)
            self._buffer = torch.empty(self._arena.size)
            self._packed_rows = num_tokens
            self._views.clear()
        if key not in self._views:
            if len(self._views) >= _MAX_CACHED_VIEWS:
                self._views.clear()
            assert self._arena is not None
            rows = {"T": num_tokens, "O": num_outputs}
            self._views[key] = [
                self._buffer.narrow(0, offset or 0, rows[slot.rows] * slot.width).view(-1, slot.width)
                if slot.index != self._plan.output
                else self._buffer[:0]
                for slot, offset in zip(self._plan.slots, self._arena.offsets, strict=True)
            ]
        return self._views[key]

    def _bind(self, op: Op) -> _Run:
        """Return a function that runs one operation, its weights read and packed."""
        binders: dict[OpKind, Callable[[Op], _Run]] = {
            OpKind.EMBED: self._bind_embed,
            OpKind.RMS_NORM: self._bind_rms_norm,
            OpKind.LINEAR: self._bind_linear,
            OpKind.QK_NORM: self._bind_qk_norm,
            OpKind.ROPE_STORE: self._bind_rope_store,
            OpKind.PAGED_ATTENTION: self._bind_paged_attention,
            OpKind.ACT_MUL: self._bind_act_mul,
            OpKind.ADD: self._bind_add,
            OpKind.SCALE: self._bind_scale,
            OpKind.SOFT_CAP: self._bind_soft_cap,
            OpKind.GATHER_ROWS: self._bind_gather_rows,
            OpKind.LOGITS: self._bind_linear,
            OpKind.EMBED_SHARD: self._bind_embed_shard,
            OpKind.ALL_REDUCE: self._bind_exchange,
            OpKind.ALL_GATHER: self._bind_exchange,
        }
        return binders[op.kind](op)

    def _tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            self._tensors[name] = torch.from_numpy(self._weights.read(name))
        return self._tensors[name]

    def _bind_embed(self, op: Op) -> _Run:
        table, (y,) = self._tensor(op.weights[0]), op.outputs
        return lambda c: torch.index_select(table, 0, c.step.ids, out=c.slots[y])

    def _bind_embed_shard(self, op: Op) -> _Run:
        table, (y,), first = self._tensor(op.weights[0]), op.outputs, op.integer("first")

        def run(c: _Context) -> None:
            rows = c.step.ids - first
            is_elsewhere = (rows < 0) | (rows >= len(table))
            torch.index_select(table, 0, rows.masked_fill_(is_elsewhere, 0), out=c.slots[y])
            c.slots[y].masked_fill_(is_elsewhere.unsqueeze(1), 0)

        return run

    def _bind_exchange(self, op: Op) -> _Run:
        (x,), (y,), ranks = op.inputs, op.outputs, self._ranks
        assert ranks is not None, "a share of a plan needs the other ranks"
        exchange = ranks.sum if op.kind is OpKind.ALL_REDUCE else ranks.gather
        return lambda c: exchange(c.slots[x], c.slots[y])

    def _bind_rms_norm(self, op: Op) -> _Run:
        weight, (x,), (y,) = self._tensor(op.weights[0]), op.inputs, op.outputs
        eps = op.number("eps")
        return lambda c: rms_norm(c.slots[x], weight, c.slots[y], eps=eps)

    def _bind_linear(self, op: Op) -> _Run:
        (x,), (y,), count = op.inputs, op.outputs, op.num_matrices
        # A tied embedding was read already: it is packed again, because a lookup needs it unpacked.
        parts = [
            self._tensors[name] if name in self._tensors else torch.from_numpy(self._weights.read(name))
            for name in op.weights
        ]
        bias = torch.cat(parts[count:]) if parts[count:] else None
        matrix = Matrix(torch.cat(parts[:count]) if count > 1 else parts[0], bias)
        self._matrices.append(matrix)
        is_output = self._plan.slots[y].rows == "O"
        return lambda c: matrix.apply(
            c.slots[x], c.slots[y], c.step.output_tiles if is_output else c.step.token_tiles
        )

    def _bind_qk_norm(self, op: Op) -> _Run:
        (x,), (y,), eps = op.inputs, op.outputs, op.number("eps")
        q_weight, k_weight = (self._tensor(name) for name in op.weights)
        q_heads, k_heads, head_dim = self._plan.num_heads, self._plan.num_kv_heads, self._plan.head_dim

        def run(c: _Context) -> None:
            source, target = (c.slots[i].view(-1, q_heads + 2 * k_heads, head_dim) for i in (x, y))
            q, k, v = slice(q_heads), slice(q_heads, q_heads + k_heads), slice(q_heads + k_heads, None)
            rms_norm(source[:, q], q_weight, target[:, q], eps=eps)
            rms_norm(source[:, k], k_weight, target[:, k], eps=eps)
            target[:, v].copy_(source[:, v])

        return run

    def _bind_rope_store(self, op: Op) -> _Run:
        (x,), (y,), layer, rope = op.inputs, op.outputs, op.integer("layer"), op.integer("rope")
        return lambda c: rope_store(
            c.slots[x],
            c.slots[y],
            c.keys[layer],
            c.values[layer],
            cos=c.cos[rope],
            sin=c.sin[rope],
            store_rows=c.step.store_rows,
        )

    def _bind_paged_attention(self, op: Op) -> _Run:
        (x,), (y,), layer, window = op.inputs, op.outputs, op.integer("layer"), op.integer("window")
        scale, cap = op.number("scale"), op.number("soft_cap")
        return lambda c: paged_attention(
            c.slots[x],
            c.keys[layer],
            c.values[layer],
            c.slots[y],
            c.step.groups[window],
            scale=scale,
            soft_cap=cap,
        )

    def _bind_act_mul(self, op: Op) -> _Run:
        (x,), (y,), activation = op.inputs, op.outputs, Activation(op.integer("activation"))
        apply = {Activation.SILU: silu_mul, Activation.GELU_TANH: gelu_tanh_mul}[activation]
        return lambda c: apply(c.slots[x], c.slots[y])

    def _bind_add(self, op: Op) -> _Run:
        (x, other), (y,) = op.inputs, op.outputs
        return lambda c: torch.add(c.slots[x], c.slots[other], out=c.slots[y])

    def _bind_scale(self, op: Op) -> _Run:
        (x,), (y,), factor = op.inputs, op.outputs, op.number("factor")
        return lambda c: torch.mul(c.slots[x], factor, out=c.slots[y])

    def _bind_soft_cap(self, op: Op) -> _Run:
        (x,), (y,), cap = op.inputs, op.outputs, op.number("cap")
        return lambda c: soft_cap(c.slots[x], c.slots[y], cap=cap)

    def _bind_gather_rows(self, op: Op) -> _Run:
        (x,), (y,) = op.inputs, op.outputs
        return lambda c: torch.index_select(c.slots[x], 0, c.step.out_rows, out=c.slots[y])


def _rope_table(rope: RopeTable, max_positions: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin as `rope_store` reads them, [max_positions, head_dim], angles in float32."""
    frequencies = torch.tensor(rope.inverse_frequencies, dtype=torch.float32)
    angles = torch.arange(max_positions, dtype=torch.float32).unsqueeze(1) * frequencies
    cos, sin = angles.cos().mul_(rope.magnitude), angles.sin().mul_(rope.magnitude)
    return torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)
