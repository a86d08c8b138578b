"""What each rank of a model computes: shares that make up the whole, or a refusal by name."""

from typing import Any

import pytest

from tests.unit.plan.test_plan_golden import GEMMA3, SIZES
from worker.models.registry import build_model
from worker.plan.op import OpKind, Plan, render
from worker.plan.shard import CannotShard, ShardedPlan, shard

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "llama_biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "gemma3": GEMMA3,
    "mistral": {"model_type": "mistral", "sliding_window": 16},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 4},
}
SUMMED = {"o", "down"}


def plan_of(**config: Any) -> Plan:
    return build_model({**SIZES, "model_type": "llama", **config}).plan


def shards(plan: Plan, size: int) -> list[ShardedPlan]:
    return [shard(plan, rank=rank, size=size) for rank in range(size)]


def covered(found: list[ShardedPlan], name: str, axis: int, length: int) -> list[int]:
    """Return how many ranks hold each row or column of a parameter."""
    counts = [0] * length
    for one in found:
        part = one.parts[name]
        span = (part.rows, part.columns)[axis]
        assert span is not None
        assert one.plan.parameters[name][axis] == span.size
        for index in range(span.start, span.stop):
            counts[index] += 1
    return counts


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_parts_make_up_every_weight_of_every_family(name: str, size: int) -> None:
    plan = plan_of(**CONFIGS[name])
    found = shards(plan, size)
    for parameter, shape in plan.parameters.items():
        holders = [one for one in found if parameter in one.plan.parameters]
        role = parameter.rpartition(".")[2]
        if parameter not in found[0].parts:
            # A norm is everybody's; a bias after a sum is added once.
            assert role.endswith("norm") or role in {f"{summed}_bias" for summed in SUMMED}
            assert all(one.plan.parameters[parameter] == shape for one in holders)
            assert len(holders) == (size if role.endswith("norm") else 1)
            continue
        axis = 1 if role in SUMMED else 0
        num_copies = size // min(size, plan.num_kv_heads) if role[0] in "kv" else 1
        assert covered(found, parameter, axis, shape[axis]) == [num_copies] * shape[axis]


@pytest.mark.parametrize("name", CONFIGS)
def test_all_ranks_run_the_same_operations_over_the_same_slots(name: str) -> None:
    found = shards(plan_of(**CONFIGS[name]), 4)
    assert len({tuple((op.kind, op.inputs, op.outputs) for op in one.plan.ops) for one in found}) == 1
    assert len({one.plan.slots for one in found}) == 1


def test_ranks_exchange_after_embedding_attention_mlp_and_logits() -> None:
    plan = shard(plan_of(), rank=1, size=2).plan
    sums = [plan.ops[i - 1] for i, op in enumerate(plan.ops) if op.kind is OpKind.ALL_REDUCE]
    roles = [op.weights[0].rpartition(".")[2] for op in sums]
    assert roles == ["embedding", *["o", "down"] * plan.num_layers]
    gather = plan.ops[-1]
    assert gather.kind is OpKind.ALL_GATHER
    assert plan.slots[plan.output].width == SIZES["vocab_size"]
    assert plan.slots[gather.inputs[0]].width == SIZES["vocab_size"] // 2
    assert plan.ops[0].integer("first") == SIZES["vocab_size"] // 2


def test_one_rank_computes_what_one_process_computes() -> None:
    plan = plan_of()
    whole = shard(plan, rank=0, size=1).plan
    assert whole.parameters == plan.parameters
    assert (whole.num_heads, whole.num_kv_heads) == (plan.num_heads, plan.num_kv_heads)


def test_key_value_heads_are_held_by_neighbours_where_there_are_fewer_than_ranks() -> None:
    found = shards(plan_of(num_attention_heads=8, num_key_value_heads=2, head_dim=4), 4)
    spans = [one.parts["layers.0.k"].rows for one in found]
    assert [(span.start, span.stop) for span in spans if span] == [(0, 4), (0, 4), (4, 8), (4, 8)]
    assert {(one.plan.num_heads, one.plan.num_kv_heads) for one in found} == {(2, 1)}


@pytest.mark.failure("B118")
@pytest.mark.parametrize(
    ("config", "size", "says"),
    [
        ({}, 3, "4 query heads do not divide by 3 ranks"),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 2},
            2,
            "3 key-value heads do not divide by 2",
        ),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 2, "intermediate_size": 16},
            4,
            "4 ranks do not divide by 3 key-value heads",
        ),
        ({"intermediate_size": 13}, 2, r"13 columns of layers\.0\.gate do not divide by 2 ranks"),
        ({"vocab_size": 101}, 2, "101 ids of embedding do not divide by 2 ranks"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(config: dict[str, Any], size: int, says: str) -> None:
    plan = plan_of(**config)
    with pytest.raises(CannotShard, match=says):
        shard(plan, rank=0, size=size)


def test_the_share_of_the_first_rank_is_printed_with_its_exchanges() -> None:
    text = render(shard(plan_of(num_hidden_layers=1, mlp_bias=True), rank=0, size=2).plan)
    assert "param layers.0.down [8, 6]" in text
    assert "[layers.0.down, layers.0.down_bias] biases=1" in text
    assert "[layers.0.down] biases=0" in render(
        shard(plan_of(num_hidden_layers=1, mlp_bias=True), rank=1, size=2).plan
    )
