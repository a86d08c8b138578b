"""Packs the slots of a plan into one buffer, so that slots which are never alive together share memory.

Knows liveness; knows nothing of devices: offsets and sizes count elements.

Source: greedy by size, Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural Net Inference".
"""

from bisect import insort
from dataclasses import dataclass

from worker.plan.op import Plan, Slot

ALIGNMENT = 16
"""Elements (64 bytes of float32): a cache line and the widest vector register."""


_FEWEST_ROWS = 64
"""Tokens of the smallest step that memory is laid out for; larger ones double it."""


@dataclass(frozen=True, slots=True)
class Arena:
    """Where each slot lies for a step of at most the packed size."""

    offsets: tuple[int | None, ...]
    """By slot; None for the plan's output, which outlives the step and is not packed."""
    size: int


def rows_for(num_tokens: int) -> int:
    """Return the rows that memory is laid out for when a step of `num_tokens` comes (300: 512)."""
    return max(_FEWEST_ROWS, 1 << (num_tokens - 1).bit_length())


def pack(plan: Plan, *, num_tokens: int, num_outputs: int) -> Arena:
    """Place all slots for a step of `num_tokens` and `num_outputs` rows.

    A slot lives from the operation that writes it through the last that reads it, both included: an
    operation never writes over its own inputs.
    """
    rows = {"T": num_tokens, "O": num_outputs}
    spans = _lifetimes(plan)
    offsets: list[int | None] = [None] * len(plan.slots)
    placed: list[tuple[int, int, int, int]] = []
    size = 0
    packed = [slot for slot in plan.slots if slot.index != plan.output]
    for slot in sorted(packed, key=lambda slot: (-_extent(slot, rows), slot.index)):
        first, last = spans[slot.index]
        extent = _extent(slot, rows)
        offset = 0
        for other_offset, other_end, other_first, other_last in placed:
            is_alive_together = other_first <= last and first <= other_last
            if is_alive_together and offset < other_end and other_offset < offset + extent:
                offset = other_end
        insort(placed, (offset, offset + extent, first, last))
        offsets[slot.index] = offset
        size = max(size, offset + extent)
    return Arena(tuple(offsets), size)


def _extent(slot: Slot, rows: dict[str, int]) -> int:
    return -(-rows[slot.rows] * slot.width // ALIGNMENT) * ALIGNMENT


def _lifetimes(plan: Plan) -> list[tuple[int, int]]:
    """Return the first and last operation that touches each slot."""
    spans = [(0, 0)] * len(plan.slots)
    for step, op in enumerate(plan.ops):
        for index in op.outputs:
            spans[index] = (step, step)
        for index in op.inputs:
            spans[index] = (spans[index][0], step)
    return spans
