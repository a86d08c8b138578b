"""Joined operations read and write what their parts did, and nothing else changes."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.plan.test_plan_golden import GEMMA3, SIZES
from worker.models.registry import build_model
from worker.plan.arena import pack
from worker.plan.op import Op, OpKind, Plan, render
from worker.plan.peephole import fuse

CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama"},
    {"model_type": "qwen3", "head_dim": 4},
    GEMMA3,
]
PARTS = {
    OpKind.ADD_RMS_NORM: (OpKind.ADD, OpKind.RMS_NORM),
    OpKind.QK_NORM_ROPE_STORE: (OpKind.QK_NORM, OpKind.ROPE_STORE),
}


def plan_of(config: dict[str, Any]) -> Plan:
    return build_model({**SIZES, **config}).plan


def values(plan: Plan) -> list[object]:
    """Return what every slot holds, as the tree of operations that made it, and what is written to memory."""
    made: dict[int, object] = {}
    seen: list[object] = []
    for op in plan.ops:
        inputs = tuple(made[index] for index in op.inputs)
        attributes = dict(op.attributes)
        kinds = PARTS.get(op.kind, (op.kind,))
        for place, kind in enumerate(kinds):
            weights = () if kind is OpKind.ADD else op.weights
            if kind is OpKind.ROPE_STORE:
                weights = ()
            own = {"qk_norm": ("eps",), "rope_store": ("layer", "rope")}.get(kind, tuple(attributes))
            value = (kind, inputs, weights, tuple((name, attributes[name]) for name in own))
            if kind is OpKind.ADD:
                value = (kind, inputs, (), ())
            seen.append(value)
            inputs = (value,)
            if len(op.outputs) == len(kinds):
                made[op.outputs[place]] = value
        made[op.outputs[-1]] = seen[-1]
    return [made[plan.output], *seen]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config["model_type"]))
def test_a_joined_plan_computes_the_same_values_in_the_same_order(config: dict[str, Any]) -> None:
    plan = plan_of(config)
    fused = fuse(plan)
    assert values(fused) == values(plan)
    assert fused.parameters == plan.parameters
    assert [slot.index for slot in fused.slots] == list(range(len(fused.slots)))


def test_every_norm_after_a_sum_and_before_a_rotation_is_joined() -> None:
    plan = fuse(plan_of({"model_type": "qwen3", "head_dim": 4}))
    kinds = [op.kind for op in plan.ops]
    assert kinds.count(OpKind.ADD_RMS_NORM) == 3, "two layers, and the last sum is gathered first"
    assert kinds.count(OpKind.QK_NORM_ROPE_STORE) == 2
    assert OpKind.QK_NORM not in kinds
    assert kinds.count(OpKind.ADD) == 1
    assert "add_rms_norm" in render(plan)


def test_a_normed_slot_that_somebody_else_reads_stays() -> None:
    plan = plan_of({"model_type": "qwen3", "head_dim": 4})
    (norm,) = [op for op in plan.ops if op.kind is OpKind.QK_NORM][:1]
    extra = Op(OpKind.SCALE, norm.outputs, (plan.output,), (), (("factor", 1.0),))
    kinds = [op.kind for op in fuse(replace(plan, ops=(*plan.ops, extra))).ops]
    assert kinds.count(OpKind.QK_NORM) == kinds.count(OpKind.QK_NORM_ROPE_STORE) == 1


def test_slots_that_are_gone_take_no_memory() -> None:
    config = {"model_type": "qwen3", "head_dim": 4}
    deep, shallow = (fuse(plan_of({**config, "num_hidden_layers": depth})) for depth in (5, 2))
    sizes = [pack(plan, num_tokens=64, num_outputs=64).size for plan in (deep, shallow)]
    assert sizes[0] == sizes[1]
