"""Joined operations read and write what their parts did, and nothing else changes."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.plan.test_plan_golden import GEMMA3, SIZES
from worker.models.registry import build_model
from worker.plan.arena import pack
from worker.plan.op import Op, OpKind, Plan, render
from worker.plan.peephole import fuse
from worker.plan.quantized_inputs import quantize_inputs
from worker.plan.slots import code_slots

CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama"},
    {"model_type": "qwen3", "head_dim": 4},
    GEMMA3,
]
PARTS = {
    OpKind.ADD_RMS_NORM: (OpKind.ADD, OpKind.RMS_NORM),
    OpKind.QK_NORM_ROPE_STORE: (OpKind.QK_NORM, OpKind.ROPE_STORE),
    OpKind.RMS_NORM_QUANTIZE: (OpKind.RMS_NORM, OpKind.QUANTIZE),
    OpKind.ADD_RMS_NORM_QUANTIZE: (OpKind.ADD, OpKind.RMS_NORM, OpKind.QUANTIZE),
    OpKind.ACT_MUL_QUANTIZE: (OpKind.ACT_MUL, OpKind.QUANTIZE),
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
        for kind in kinds:
            weights = () if kind in (OpKind.ADD, OpKind.ROPE_STORE, OpKind.QUANTIZE) else op.weights
            own = {"qk_norm": ("eps",), "rope_store": ("layer", "rope")}.get(kind, tuple(attributes))
            value = (kind, inputs, weights, tuple((name, attributes[name]) for name in own))
            if kind in (OpKind.ADD, OpKind.QUANTIZE):
                value = (kind, inputs, (), ())
            seen.append(value)
            inputs = (value,)
            if kind is OpKind.ADD:
                made[op.outputs[0]] = value  # the sum stays, also where its norm follows
        made[op.outputs[-1]] = seen[-1]
    return [made[plan.output], *seen]


@pytest.mark.parametrize("has_codes", [False, True], ids=["floats", "codes"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config["model_type"]))
def test_a_joined_plan_computes_the_same_values_in_the_same_order(
    config: dict[str, Any], has_codes: bool
) -> None:
    plan = quantize_inputs(plan_of(config), lambda op: has_codes)
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


def test_products_of_codes_read_what_a_norm_or_a_gate_has_quantised() -> None:
    plan = plan_of({"model_type": "llama"})
    fused = fuse(quantize_inputs(plan, lambda op: True))
    kinds = [op.kind for op in fused.ops]
    assert kinds.count(OpKind.RMS_NORM_QUANTIZE) == 1, "the first norm follows no sum"
    assert kinds.count(OpKind.ADD_RMS_NORM_QUANTIZE) == 3
    assert kinds.count(OpKind.ACT_MUL_QUANTIZE) == 2
    assert kinds.count(OpKind.QUANTIZE) == 2, "of attention's output, which nothing joins"
    codes = code_slots(fused)
    for op in fused.ops:
        if op.kind is OpKind.LINEAR:
            assert set(op.inputs) <= codes
        else:
            assert not set(op.inputs) & codes, "only products read codes"


def test_only_products_that_multiply_codes_read_them_and_rows_of_both_kinds_of_reader_stay() -> None:
    plan = plan_of({"model_type": "llama"})
    (gate_up, *_) = [op for op in plan.ops if "gate" in "".join(op.weights)]
    other = replace(gate_up, outputs=(len(plan.slots),))
    both = replace(
        plan,
        ops=(*plan.ops, other),
        slots=(*plan.slots, replace(plan.slots[gate_up.outputs[0]], index=len(plan.slots))),
    )
    fused = fuse(quantize_inputs(both, lambda op: op is gate_up))
    kinds = [op.kind for op in fused.ops]
    assert kinds.count(OpKind.QUANTIZE) == 1
    assert OpKind.ADD_RMS_NORM_QUANTIZE not in kinds, "somebody else reads the norm's floats"
    assert values(fused) == values(quantize_inputs(both, lambda op: op is gate_up))


def test_rows_that_two_products_read_are_quantised_once() -> None:
    plan = plan_of({"model_type": "llama"})
    (gate_up, *_) = [op for op in plan.ops if "gate" in "".join(op.weights)]
    index = plan.ops.index(gate_up)
    twice = replace(plan, ops=(*plan.ops[: index + 1], gate_up, *plan.ops[index + 1 :]))
    kinds = [op.kind for op in quantize_inputs(twice, lambda op: op == gate_up).ops]
    assert kinds.count(OpKind.QUANTIZE) == 1


def test_slots_that_are_gone_take_no_memory() -> None:
    config = {"model_type": "qwen3", "head_dim": 4}
    deep, shallow = (fuse(plan_of({**config, "num_hidden_layers": depth})) for depth in (5, 2))
    sizes = [pack(plan, num_tokens=64, num_outputs=64).size for plan in (deep, shallow)]
    assert sizes[0] == sizes[1]
