"""Says what a model needs in memory before it is loaded.

Knows plans, formats and arithmetic; knows nothing of files, devices or a running worker, nor of what to
change where it is too much: `memory_changes` does.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

from services.domain.capacity import pages_for
from services.domain.kv_layout import KvFormat
from worker.engine.config import MAX_SCORED_TOKENS
from worker.plan.arena import pack, rows_for
from worker.plan.op import OpKind, Plan

HEADROOM = 0.125
"""Share of weights, KV and activations kept free for fragmentation and the unforeseen."""
PROCESS_BYTES = 84 << 20
"""What a worker process takes besides its model: interpreter, pages of libraries, gRPC, telemetry, requests.

Measured in its mappings with models of 49k and 262k ids: 84 MB after plain requests, 88 to 92 MB once prompts
were scored.
"""
_FLOAT_BYTES = 4
_HUGE_PAGE = 2 << 20
_KEPT_FLOAT = frozenset({"embedding", "head"})
_GROUP = 32


class WeightStorage(StrEnum):
    """How matrices are held. Vectors are float32 always."""

    F32 = "f32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def bits(self) -> float:
        """Bits of one number, its share of the group's scale and offset included."""
        return {"f32": 32.0, "bf16": 16.0, "int8": 8 + 32 / _GROUP, "int4": 4 + 32 / _GROUP}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be served at once."""

    context_tokens: int
    """Longest prompt + output that must be possible."""
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    """Requests of that length that run together."""
    step_tokens: int = 512
    """Tokens of the largest step; bounds activations."""
    page_size: int = 16

    def __post_init__(self) -> None:
        for name in ("context_tokens", "prompt_tokens", "output_tokens", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.prompt_tokens + self.output_tokens > self.context_tokens:
            raise ValueError(
                f"prompt + output is {self.prompt_tokens + self.output_tokens} tokens,"
                f" more than context_tokens {self.context_tokens}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to serve a workload."""

    weights: WeightStorage
    kv: KvFormat
    workload: Workload
    shipped_bytes: int | None = None
    """What the weights take, held as in their files; then `weights` only says what that is most like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes by what takes them."""

    setup: Setup
    weight_bytes: int
    kv_bytes: int
    """KV of all concurrent requests at full length, and never less than one at full context."""
    activation_bytes: int
    """The arena of the largest step, in whole huge pages, and what ranks exchange in it."""
    logits_bytes: int
    """Rows of the vocabulary: one for each request, and those of prompts that are scored."""
    table_bytes: int
    """Rotations of every position of the context."""
    process_bytes: int
    headroom_bytes: int
    budget_bytes: int
    num_sequences: int
    """Requests of the workload's length that fit, whatever concurrency asks for."""

    @property
    def total_bytes(self) -> int:
        return self.used_bytes + self.headroom_bytes

    @property
    def used_bytes(self) -> int:
        """What a worker takes once it has run its largest step."""
        return self.kv_bytes + self.fixed_bytes

    @property
    def fixed_bytes(self) -> int:
        """All but the KV."""
        model = self.weight_bytes + self.activation_bytes + self.logits_bytes + self.table_bytes
        return model + self.process_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.budget_bytes


def plan_memory(plan: Plan, setup: Setup, budget_bytes: int) -> MemoryPlan:
    """Add up what `setup` takes.

    Worked number: 135M parameters as int4 at 5 bits, 28M of them an embedding of 16, are 123 MB; 32 requests
    of 1,800 tokens, in int8 KV of 30 layers and 3 heads of 64, take 32 * 113 pages of 195,840 bytes, 708 MB;
    32 + 64 rows of 49,152 logits are 19 MB, and rotations of 4,096 positions of 64 numbers 1 MB. Not counted:
    what sampling sorts, up to 12 bytes for each id of the vocabulary and thread.

    Args:
        plan: The model, or the share of it that a rank computes: then all figures are that rank's.
        budget_bytes: Memory that the worker may take, or the rank.
    """
    load = setup.workload
    weights = bytes_of_weights(plan, setup)
    page_bytes = page_bytes_of(plan, setup.kv, load.page_size)
    sequence_bytes = page_bytes * pages_for(load.prompt_tokens + load.output_tokens, load.page_size)
    longest_bytes = page_bytes * pages_for(load.context_tokens, load.page_size)
    kv = max(load.concurrency * sequence_bytes, longest_bytes)
    rows = rows_for(load.step_tokens)
    arena = _FLOAT_BYTES * pack(plan, num_tokens=rows, num_outputs=rows).size
    num_logits = load.concurrency + MAX_SCORED_TOKENS
    found = MemoryPlan(
        setup=setup,
        weight_bytes=weights,
        kv_bytes=kv,
        activation_bytes=-(-arena // _HUGE_PAGE) * _HUGE_PAGE + _exchange_bytes(plan, rows, num_logits),
        logits_bytes=_FLOAT_BYTES * num_logits * plan.slots[plan.output].width,
        table_bytes=load.context_tokens * position_bytes(plan),
        process_bytes=PROCESS_BYTES,
        headroom_bytes=0,
        budget_bytes=budget_bytes,
        num_sequences=0,
    )
    left_bytes = room(found)
    return replace(
        found,
        headroom_bytes=int(HEADROOM * found.used_bytes),
        num_sequences=max(0, left_bytes // sequence_bytes) if left_bytes >= longest_bytes else 0,
    )


def room(found: MemoryPlan) -> int:
    """Return what the budget leaves for KV."""
    return int(found.budget_bytes / (1 + HEADROOM)) - found.fixed_bytes


def _exchange_bytes(plan: Plan, num_tokens: int, num_outputs: int) -> int:
    """Return what a rank's share of a plan exchanges at once: all ranks' parts, and their sum in float32."""
    rows = {"T": num_tokens, "O": num_outputs}
    inputs = [
        plan.slots[op.inputs[0]] for op in plan.ops if op.kind in (OpKind.ALL_REDUCE, OpKind.ALL_GATHER)
    ]
    most = max((rows[slot.rows] * slot.width for slot in inputs), default=0)
    return _FLOAT_BYTES * most * (num_ranks(plan) + 1)


def num_ranks(plan: Plan) -> int:
    """Return how many ranks a plan is shared by: logits are gathered from all of them."""
    gathers = (op for op in plan.ops if op.kind is OpKind.ALL_GATHER)
    return next((plan.slots[op.outputs[0]].width // plan.slots[op.inputs[0]].width for op in gathers), 1)


def position_bytes(plan: Plan) -> int:
    """Return what the rotations of one position take: a cosine and a sine for each pair, by table."""
    return _FLOAT_BYTES * sum(2 * len(rope.inverse_frequencies) for rope in plan.ropes)


def bytes_of_weights(plan: Plan, setup: Setup) -> int:
    """Return what the weights take: what is known of their files, else by format."""
    return weights_of(plan, setup.weights) if setup.shipped_bytes is None else setup.shipped_bytes


def weights_of(plan: Plan, storage: WeightStorage) -> int:
    """Return the bytes of all parameters with matrices in `storage`. A tied embedding counts once.

    Embedding and head keep 16 bits under int8 and int4, as `quire quantize` leaves them.
    """
    total = 0
    for name, shape in plan.parameters.items():
        bits = max(storage.bits, 16.0) if name in _KEPT_FLOAT else storage.bits
        total += int(prod(shape) * (bits if len(shape) == 2 else 32)) // 8
    return total


def nearest_storage(plan: Plan, shipped_bytes: int) -> WeightStorage:
    """Return the storage whose size is nearest to what the files hold."""
    return min(WeightStorage, key=lambda storage: abs(weights_of(plan, storage) - shipped_bytes))


def page_bytes_of(plan: Plan, kv: KvFormat, page_size: int) -> int:
    """Return the bytes of one page of the plan's KV."""
    return plan.kv_layout(kv, page_size).page_bytes
