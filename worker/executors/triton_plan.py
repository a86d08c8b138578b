"""Binds a plan to weights on a device and launches its operations, pairs joined, one after the other.

Knows which kernel computes what; knows nothing of batches beyond the tensors of a `TritonStep`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from services.domain.kv_layout import KvFormat
from worker.executors.base import KernelUse, StepLimits
from worker.executors.kernel_uses import count_uses
from worker.executors.torch_ranks import Ranks
from worker.executors.triton_context import PlanMemory, Run, StepContext
from worker.executors.triton_step import TritonStep
from worker.executors.triton_weights import TritonWeights, rope_table
from worker.executors.weights.loader import WeightSource
from worker.kernels.act_mul_triton import gelu_tanh_mul, silu_mul
from worker.kernels.gather_rows_triton import gather_rows, gather_shard
from worker.kernels.group_quantize import GROUP
from worker.kernels.group_quantize_torch import codes_in
from worker.kernels.group_quantize_triton import group_quantize
from worker.kernels.kv_pages_torch import LayerKv
from worker.kernels.linear_triton import kind_of, linear, most_pieces
from worker.kernels.packed_matrix_torch import PackedMatrix
from worker.kernels.paged_attention_triton import SplitMemory, decode_attention, lanes_of, ragged_attention
from worker.kernels.rms_norm_triton import qk_norm, rms_norm
from worker.kernels.rope_store_triton import rope_store
from worker.kernels.soft_cap_triton import soft_cap
from worker.kernels.vendor_linear_torch import vendor_linear
from worker.plan.arena import pack
from worker.plan.op import Activation, Op, OpKind, Plan
from worker.plan.peephole import fuse
from worker.plan.quantized_inputs import quantize_inputs
from worker.plan.slots import code_slots, float_slots


class TritonPlan:
    """A plan with its weights on a device, ready to run."""

    def __init__(
        self,
        plan: Plan,
        weights: WeightSource,
        *,
        dtype: torch.dtype,
        max_positions: int,
        device: torch.device,
        kv_format: KvFormat,
        int8_rows: bool,
        vendor_products: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        self._vendor_products = vendor_products
        self._dtype, self._device, self._ranks, self._kv_format = dtype, device, ranks, kv_format
        self._weights = TritonWeights(weights, dtype=dtype, device=device)
        self._plan = plan = fuse(quantize_inputs(plan, self._takes_codes) if int8_rows else plan)
        self._code_slots = code_slots(plan)
        self._uses: list[tuple[Op, str]] = []
        self._ropes = [rope_table(rope, max_positions, device) for rope in plan.ropes]
        self._is_float = float_slots(plan)
        self._most_pieces: list[Callable[[int], int]] = []
        self._runs = [self._bind(op) for op in plan.ops]

    @property
    def weight_bytes(self) -> int:
        """Bytes of device memory that weights and tables take."""
        tables = sum(table.nbytes for rope in self._ropes for table in rope)
        return self._weights.num_bytes + int(tables)

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """What layers run on."""
        return count_uses(self._uses)

    @property
    def uses_vendor(self) -> bool:
        """Whether a product runs on the vendor's library, so that a row's bits depend on the others."""
        return any(kernel.startswith("vendor_") for _, kernel in self._uses)

    def allocate(self, limits: StepLimits) -> PlanMemory:
        """Return memory for the largest step: no step makes any."""
        plan, device = self._plan, self._device
        arena = pack(plan, num_tokens=limits.max_step_tokens, num_outputs=limits.max_outputs)
        buffer = torch.empty(arena.size, dtype=self._dtype, device=device)
        rows = {"T": limits.max_step_tokens, "O": limits.max_outputs}
        # Narrow slots share the arena; float32 ones stand alone.
        slots = [
            torch.empty(rows[slot.rows], slot.width, device=device)
            if is_float or offset is None
            else buffer.narrow(0, offset, rows[slot.rows] * slot.width).view(-1, slot.width)
            for slot, offset, is_float in zip(plan.slots, arena.offsets, self._is_float, strict=True)
        ]
        splits = SplitMemory.allocate(
            num_sequences=limits.max_sequences,
            max_context=limits.max_context_tokens,
            num_heads=plan.num_heads,
            head_dim=plan.head_dim,
            device=device,
        )
        if self._ranks is not None:
            self._ranks.reserve(limits.max_sequences, torch.int32)
        for op in plan.ops:
            if op.kind in (OpKind.ALL_REDUCE, OpKind.ALL_GATHER) and self._ranks is not None:
                self._ranks.reserve(slots[op.inputs[0]].numel(), slots[op.inputs[0]].dtype)
        num_pieces = max(most(limits.max_step_tokens) for most in self._most_pieces)
        return PlanMemory(slots, splits, torch.empty(num_pieces, device=device), slots[plan.output])

    def share_ids(self, ids: Tensor) -> None:
        """Let all ranks go on with the ids that rank 0 has drawn. ids: [F] int32, at most one a sequence."""
        if self._ranks is not None:
            self._ranks.share(ids)

    def run(self, step: TritonStep, kv: Sequence[LayerKv], memory: PlanMemory) -> Tensor:
        """Launch every operation and return the logits [O, vocab] float32.

        What is launched depends on the numbers of rows and of sequences alone, so it can be captured.

        Args:
            step: Index tensors of the batch.
            kv: Memory of every layer.
            memory: For steps at least as large.
        """
        rows = {"T": len(step.ids), "O": len(step.out_rows)}
        slots = [whole[: rows[slot.rows]] for slot, whole in zip(self._plan.slots, memory.slots, strict=True)]
        context = StepContext(step, slots, kv, memory.splits, memory.pieces)
        for run in self._runs:
            run(context)
        return slots[self._plan.output]

    def _bind(self, op: Op) -> Run:
        """Return a function that launches one operation, its weights read and on the device."""
        binders: dict[OpKind, Callable[[Op], Run]] = {
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
            OpKind.ADD_RMS_NORM: self._bind_add_rms_norm,
            OpKind.QK_NORM_ROPE_STORE: self._bind_rope_store,
            OpKind.QUANTIZE: self._bind_quantize,
            OpKind.RMS_NORM_QUANTIZE: self._bind_rms_norm,
            OpKind.ADD_RMS_NORM_QUANTIZE: self._bind_add_rms_norm,
            OpKind.ACT_MUL_QUANTIZE: self._bind_act_mul,
        }
        return binders[op.kind](op)

    def _bind_embed(self, op: Op) -> Run:
        table, (y,) = self._table(op), op.outputs
        return lambda c: gather_rows(table, c.step.ids, c.slots[y])

    def _bind_embed_shard(self, op: Op) -> Run:
        table, (y,), first = self._table(op), op.outputs, op.integer("first")
        return lambda c: gather_shard(table, c.step.ids, c.slots[y], first=first)

    def _table(self, op: Op) -> Tensor:
        table = self._weights.table(op.weights)
        self._uses.append((op, f"triton_{kind_of(PackedMatrix(table, 16), self._dtype)}"))
        return table

    def _bind_exchange(self, op: Op) -> Run:
        (x,), (y,), ranks = op.inputs, op.outputs, self._ranks
        assert ranks is not None, "a share of a plan needs the other ranks"
        exchange = ranks.sum if op.kind is OpKind.ALL_REDUCE else ranks.gather
        return lambda c: exchange(c.slots[x], c.slots[y])

    def _bind_rms_norm(self, op: Op) -> Run:
        weight, (x,), (y,) = self._weights.vector(op.weights[0]), op.inputs, op.outputs
        eps, target = op.number("eps"), self._target(y)
        return lambda c: rms_norm(c.slots[x], weight, eps=eps, **target(c))

    def _bind_add_rms_norm(self, op: Op) -> Run:
        weight, (x, other), (total, y) = self._weights.vector(op.weights[0]), op.inputs, op.outputs
        eps, target = op.number("eps"), self._target(y)
        return lambda c: rms_norm(
            c.slots[other], weight, eps=eps, residual=c.slots[x], total=c.slots[total], **target(c)
        )

    def _bind_quantize(self, op: Op) -> Run:
        (x,), (y,) = op.inputs, op.outputs
        return lambda c: group_quantize(c.slots[x], *codes_in(c.slots[y]))

    def _target(self, slot: int) -> Callable[[StepContext], dict[str, Any]]:
        """Return what gives the arguments of a kernel that writes a slot, as numbers or as codes."""
        if slot in self._code_slots:
            return lambda c: {"out": None, "quantised": codes_in(c.slots[slot])}
        return lambda c: {"out": c.slots[slot]}

    def _takes_codes(self, op: Op) -> bool:
        matrix = self._weights.matrix(op.weights[: op.num_matrices])
        return matrix.bits == 8 and matrix.in_features % GROUP == 0

    def _bind_linear(self, op: Op) -> Run:
        (x,), (y,), count = op.inputs, op.outputs, op.num_matrices
        matrix, biases = self._weights.matrix(op.weights[:count]), op.weights[count:]
        is_int8 = x in self._code_slots
        dtype = torch.int8 if is_int8 else self._dtype
        bias = torch.cat([self._weights.vector(name) for name in biases]) if biases else None
        # Logits are float32, which the library makes of float32 alone.
        is_vendors = self._vendor_products and matrix.bits == 16 and op.kind is OpKind.LINEAR
        kernel = f"{'vendor' if is_vendors else 'triton'}_{kind_of(matrix, dtype)}"
        self._uses.append((op, kernel))
        if is_vendors:
            return lambda c: vendor_linear(c.slots[x], matrix, c.slots[y], bias=bias)
        self._most_pieces.append(partial(most_pieces, matrix, dtype, self._device))

        def run(c: StepContext) -> None:
            rows = codes_in(c.slots[x]) if is_int8 else c.slots[x]
            linear(rows, matrix, c.slots[y], bias=bias, pieces=c.pieces)

        return run

    def _bind_qk_norm(self, op: Op) -> Run:
        (x,), (y,), eps = op.inputs, op.outputs, op.number("eps")
        q_weight, k_weight = (self._weights.vector(name) for name in op.weights)
        q_heads, kv_heads = self._plan.num_heads, self._plan.num_kv_heads
        return lambda c: qk_norm(
            c.slots[x], q_weight, k_weight, c.slots[y], q_heads=q_heads, kv_heads=kv_heads, eps=eps
        )

    def _bind_rope_store(self, op: Op) -> Run:
        (x,), (y,), layer = op.inputs, op.outputs, op.integer("layer")
        cos, sin = self._ropes[op.integer("rope")]
        norm = None
        if op.weights:
            q_weight, k_weight = (self._weights.vector(name) for name in op.weights)
            norm = (q_weight, k_weight, op.number("eps"))
        return lambda c: rope_store(
            c.slots[x],
            c.slots[y],
            c.kv[layer],
            cos=cos,
            sin=sin,
            positions=c.step.positions,
            slots=c.step.slots,
            norm=norm,
        )

    def _bind_paged_attention(self, op: Op) -> Run:
        (x,), (y,), layer = op.inputs, op.outputs, op.integer("layer")
        scale, window, cap = op.number("scale"), op.integer("window"), op.number("soft_cap")
        self._uses.append((op, f"triton_kv-{self._kv_format}"))

        def run(c: StepContext) -> None:
            q, out, step = c.slots[x], c.slots[y], c.step
            if not step.is_decode:
                ragged_attention(q, c.kv[layer], out, step.batch, scale=scale, window=window, soft_cap=cap)
                return
            decode_attention(
                q,
                c.kv[layer],
                out,
                step.batch,
                c.splits,
                lanes=lanes_of(len(step.batch.context_len), c.kv[layer].shape[0], c.splits),
                scale=scale,
                window=window,
                soft_cap=cap,
            )

        return run

    def _bind_act_mul(self, op: Op) -> Run:
        (x,), (y,), activation = op.inputs, op.outputs, Activation(op.integer("activation"))
        apply = {Activation.SILU: silu_mul, Activation.GELU_TANH: gelu_tanh_mul}[activation]
        target = self._target(y)
        return lambda c: apply(c.slots[x], **target(c))

    def _bind_add(self, op: Op) -> Run:
        (x, other), (y,) = op.inputs, op.outputs
        return lambda c: torch.add(c.slots[x], c.slots[other], out=c.slots[y])

    def _bind_scale(self, op: Op) -> Run:
        (x,), (y,), factor = op.inputs, op.outputs, op.number("factor")
        return lambda c: torch.mul(c.slots[x], factor, out=c.slots[y])

    def _bind_soft_cap(self, op: Op) -> Run:
        (x,), (y,), cap = op.inputs, op.outputs, op.number("cap")
        return lambda c: soft_cap(c.slots[x], c.slots[y], cap=cap)

    def _bind_gather_rows(self, op: Op) -> Run:
        (x,), (y,) = op.inputs, op.outputs
        return lambda c: gather_rows(c.slots[x], c.step.out_rows, c.slots[y])
