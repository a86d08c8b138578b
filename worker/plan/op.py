"""The plan of one step: coarse operations over slots, the only thing executors know of a model.

Knows nothing of families, weights' formats, devices or batches. Only T (tokens of the step) and O (output
rows) are symbolic; everything else is a number. One plan serves prefill, decode and mixed steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal

from services.domain.kv_layout import KvFormat, KvLayout, KvOrder

Rows = Literal["T", "O"]
Attribute = int | float


class OpKind(StrEnum):
    """What an operation computes. Slots are `[rows, width]` float32 unless an executor says otherwise.

    embed           ids -> rows of weight 0 `[vocab, width]`
    rms_norm        x / sqrt(mean(x^2) + eps) * weight 0 `[width]`
    linear          x @ W^T (+ b). W are `weights` stacked by rows; with `biases` = 1 the second half of
                    `weights` are the biases of the first half
    qk_norm         rms_norm per head over the q heads (weight 0) and k heads (weight 1) of a qkv slot
    rope_store      rotate q and k of a qkv slot by table `rope`, write k and v into the layer's KV -> q
    paged_attention causal softmax attention of q over the sequence's own KV, this step's included. A row
                    sees `window` keys, its own the last of them (0: all); scores are q . k * `scale`, then
                    `soft_cap` * tanh(score / `soft_cap`) unless that is 0
    act_mul         f(first half of x) * second half, f = `activation` (see `Activation`)
    add             x + y
    scale           x * `factor`, the factor rounded to float32
    soft_cap        `cap` * tanh(x / `cap`)
    gather_rows     the step's output rows of x, in their order
    logits          x @ W^T, W = weight 0 `[vocab, width]`

    What `shard.shard` puts in for ranks that compute one model together:

    embed_shard     embed of the ids from `first` on that weight 0 has rows for; zeros for all other ids
    all_reduce      the sum of all ranks' x, added up in the order of ranks
    all_gather      all ranks' x side by side, in the order of ranks

    quantize        x as int8 codes with a scale and a sum for every 32 columns, for a linear to read; the
                    slot holds all three, in less memory than its numbers would take

    Pairs that `peephole.fuse` joins, with the attributes and weights of both:

    add_rms_norm       add -> its sum, and the rms_norm of that
    qk_norm_rope_store qk_norm, then rope_store
    *_quantize         rms_norm, add_rms_norm or act_mul, then quantize of the result
    """

    EMBED = "embed"
    RMS_NORM = "rms_norm"
    LINEAR = "linear"
    QK_NORM = "qk_norm"
    ROPE_STORE = "rope_store"
    PAGED_ATTENTION = "paged_attention"
    ACT_MUL = "act_mul"
    ADD = "add"
    SCALE = "scale"
    SOFT_CAP = "soft_cap"
    GATHER_ROWS = "gather_rows"
    LOGITS = "logits"
    EMBED_SHARD = "embed_shard"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    ADD_RMS_NORM = "add_rms_norm"
    QK_NORM_ROPE_STORE = "qk_norm_rope_store"
    QUANTIZE = "quantize"
    RMS_NORM_QUANTIZE = "rms_norm_quantize"
    ADD_RMS_NORM_QUANTIZE = "add_rms_norm_quantize"
    ACT_MUL_QUANTIZE = "act_mul_quantize"


class Activation(IntEnum):
    """What `act_mul` applies to its first half."""

    SILU = 0
    GELU_TANH = 1
    """GELU by its tanh approximation."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of the step: `[rows, width]`, written by exactly one operation."""

    index: int
    rows: Rows
    width: int


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `inputs` and `outputs` are slot indices, `weights` parameter names."""

    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    weights: tuple[str, ...] = ()
    attributes: tuple[tuple[str, Attribute], ...] = ()

    def integer(self, name: str) -> int:
        """Return an attribute that counts something."""
        return int(dict(self.attributes)[name])

    @property
    def num_matrices(self) -> int:
        """Of a product: how many of its weights are matrices; biases follow them."""
        has_biases = self.kind is OpKind.LINEAR and self.integer("biases") == 1
        return len(self.weights) // 2 if has_biases else len(self.weights)

    def number(self, name: str) -> float:
        """Return an attribute that measures something."""
        return float(dict(self.attributes)[name])


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotary embedding: pair i of position p turns by `p * inverse_frequencies[i]` radians."""

    inverse_frequencies: tuple[float, ...]
    """[head_dim / 2]; pair i is (i, i + head_dim / 2) of a head."""
    magnitude: float = 1.0
    """Factor on cosine and sine (YaRN's attention factor)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole model as data."""

    ops: tuple[Op, ...]
    slots: tuple[Slot, ...]
    parameters: Mapping[str, tuple[int, ...]]
    """Every parameter that the operations read, with its shape."""
    output: int
    """Slot of the logits [O, vocab]."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ropes: tuple[RopeTable, ...]

    @property
    def windows(self) -> tuple[int, ...]:
        """The different windows that attention has, ascending; 0 is one that sees all keys."""
        attentions = [op for op in self.ops if op.kind is OpKind.PAGED_ATTENTION]
        return tuple(sorted({op.integer("window") for op in attentions}))

    def kv_layout(self, kv_format: KvFormat, page_size: int, order: KvOrder = KvOrder.ROWS) -> KvLayout:
        """Return what a page of `page_size` tokens of this model's KV looks like."""
        return KvLayout(
            format=kv_format,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            page_size=page_size,
            order=order,
        )


def render(plan: Plan) -> str:
    """Return the plan as text, one operation a line: what people read and golden files pin."""
    lines = [
        f"plan layers={plan.num_layers} heads={plan.num_heads} kv_heads={plan.num_kv_heads}"
        f" head_dim={plan.head_dim}"
    ]
    lines += [f"param {name} {list(shape)}" for name, shape in plan.parameters.items()]
    for op in plan.ops:
        outputs = ", ".join(_slot_text(plan.slots[index]) for index in op.outputs)
        inputs = ", ".join(f"%{index}" for index in op.inputs)
        attributes = "".join(f" {name}={value:g}" for name, value in op.attributes)
        weights = f" [{', '.join(op.weights)}]" if op.weights else ""
        lines.append(f"{outputs} = {op.kind}({inputs}){weights}{attributes}")
    lines.append(f"return %{plan.output}")
    return "\n".join(lines) + "\n"


def _slot_text(slot: Slot) -> str:
    return f"%{slot.index}[{slot.rows},{slot.width}]"
