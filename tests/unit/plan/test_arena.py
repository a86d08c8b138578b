"""Slots that are alive together never share memory; the others do."""

import numpy as np
import pytest

from worker.models.registry import build_model
from worker.plan.arena import ALIGNMENT, pack
from worker.plan.op import Plan

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 100,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 32,
}


@pytest.fixture
def plan() -> Plan:
    return build_model(CONFIG).plan


@pytest.mark.parametrize(("num_tokens", "num_outputs"), [(1, 1), (7, 3), (64, 64)])
def test_no_operation_disturbs_a_slot_that_is_read_later(
    plan: Plan, num_tokens: int, num_outputs: int
) -> None:
    arena = pack(plan, num_tokens=num_tokens, num_outputs=num_outputs)
    owner = np.full(arena.size, -1)
    rows = {"T": num_tokens, "O": num_outputs}

    def place(index: int) -> slice:
        offset, slot = arena.offsets[index], plan.slots[index]
        assert offset is not None
        return slice(offset, offset + rows[slot.rows] * slot.width)

    for op in plan.ops:
        for index in op.outputs:
            if index != plan.output:
                owner[place(index)] = index
        for index in op.inputs:
            assert (owner[place(index)] == index).all()


def test_depth_costs_no_memory(plan: Plan) -> None:
    shallow = build_model({**CONFIG, "num_hidden_layers": 1}).plan
    size = pack(plan, num_tokens=64, num_outputs=64).size
    assert size == pack(shallow, num_tokens=64, num_outputs=64).size
    assert size < sum(64 * slot.width for slot in plan.slots) / 5


def test_slots_begin_on_cache_lines_and_the_output_is_not_packed(plan: Plan) -> None:
    arena = pack(plan, num_tokens=3, num_outputs=1)
    assert arena.offsets[plan.output] is None
    assert all(offset % ALIGNMENT == 0 for offset in arena.offsets if offset is not None)
