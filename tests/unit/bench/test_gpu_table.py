"""What the GPU's table says of a figure: bytes, operations, bounds, scores and verdicts, without a device."""

import json
import math
from pathlib import Path

import pytest

from bench.gpu import goals, sizes
from bench.gpu.arithmetic import (
    causal_attention_flops,
    idle_and_span,
    int4_bytes,
    kv_bytes,
    product_bytes,
    product_operations,
    weights_read_bytes,
)
from bench.gpu.budget import Budget
from bench.gpu.goals import GOALS, Row, Skipped, Verdict, as_markdown
from bench.gpu.random_model import RandomWeights, decode_batch, prefill_batches
from bench.gpu.results import Run, now
from bench.gpu.trace import busy_intervals
from services.domain.kv_layout import KvFormat, KvLayout
from worker.models.registry import build_model


def layout(kv_format: KvFormat, num_layers: int = 1) -> KvLayout:
    return KvLayout(format=kv_format, num_layers=num_layers, num_kv_heads=8, head_dim=128, page_size=16)


def row(goal: goals.Goal, figure: float, bound: float = 100.0) -> Row:
    return Row(goal=goal, figure=figure, bound=bound, unit="GB/s")


def test_bytes_and_operations_of_the_table_are_its_worked_numbers() -> None:
    table = sizes.TABLE
    decode = {"num_sequences": table.decode_sequences, "context": table.decode_context}
    assert kv_bytes(layout(KvFormat.BF16), **decode) == 64 * 8192 * 2 * 8 * 128 * 2
    assert kv_bytes(layout(KvFormat.INT8), **decode) == 64 * 8192 * 2 * 8 * (128 + 4)
    assert causal_attention_flops(num_tokens=8192, num_heads=32, head_dim=128) == 549_822_922_752
    assert product_operations(num_rows=4096, out_features=8192, in_features=8192) == 549_755_813_888
    weight = int4_bytes(out_features=8192, in_features=8192, group=128)
    assert weight == 33_554_432 + 1_048_576
    moved = product_bytes(weight_bytes=weight, num_rows=16, out_features=8192, in_features=8192)
    assert moved == weight + 2 * 16 * (8192 + 8192)


def test_no_cache_holds_what_is_read_again() -> None:
    """Weights take turns; a layer's KV and what is copied are larger than any cache by themselves."""
    table, cache_bytes = sizes.TABLE, 256 << 20
    weight = int4_bytes(out_features=table.features, in_features=table.features, group=table.group)
    assert table.copies >= 8
    assert table.copies * weight > cache_bytes
    decode = {"num_sequences": table.decode_sequences, "context": table.decode_context}
    assert min(table.copy_bytes, kv_bytes(layout(KvFormat.INT8), **decode)) > cache_bytes


def test_a_causal_token_sees_itself_and_what_is_before_it() -> None:
    # 3 tokens see 1 + 2 + 3 keys; a key costs 2 products of 4 numbers, each a multiplication and an addition.
    assert causal_attention_flops(num_tokens=3, num_heads=1, head_dim=4) == 6 * 2 * 4 * 2


def test_the_8b_model_has_the_weights_of_llama_3() -> None:
    parameters = build_model(sizes.LLAMA3_8B).plan.parameters
    total = sum(math.prod(shape) for shape in parameters.values())
    assert total == 8_030_261_248
    read = weights_read_bytes(parameters)
    norms = 65 * 4096
    assert read == 2 * (total - 128256 * 4096 - norms) + 4 * norms, "all but the embedding, norms in float32"
    in_layers = total - 2 * 128256 * 4096 - norms
    int4 = weights_read_bytes(parameters, group=128)
    assert int4 == in_layers // 2 + 2 * in_layers // 128 + 2 * 128256 * 4096 + 4 * norms


def test_only_the_embedding_is_not_read_and_the_head_stays_wide() -> None:
    parameters = {"embedding": (10, 256), "head": (10, 256), "layers.0.o": (4, 256), "norm": (256,)}
    assert weights_read_bytes(parameters) == 2 * 10 * 256 + 2 * 4 * 256 + 4 * 256
    assert weights_read_bytes(parameters, group=128) == 2 * 10 * 256 + (4 * 128 + 4 * 2 * 2) + 4 * 256


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        ([(0, 4), (3, 5), (7, 8)], (2, 8)),
        ([(7, 8), (0, 4), (3, 5)], (2, 8)),
        ([(0, 10), (2, 3), (4, 5)], (0, 10)),
        ([(5, 6)], (0, 1)),
        ([], (0, 0)),
    ],
)
def test_gaps_are_when_nothing_runs(
    busy: list[tuple[float, float]], expected: tuple[float, float]
) -> None:  # fmt: skip
    assert idle_and_span(busy) == expected


def test_a_trace_gives_what_the_device_ran_and_nothing_of_the_host(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [
        {"ph": "X", "cat": "kernel", "ts": 10.0, "dur": 2.0, "name": "a"},
        {"ph": "X", "cat": "cpu_op", "ts": 0.0, "dur": 99.0, "name": "host"},
        {"ph": "X", "cat": "gpu_memcpy", "ts": 14.0, "dur": 1.0, "name": "b"},
        {"ph": "i", "name": "mark", "ts": 3.0},
        {"ph": "X", "cat": "gpu_user_annotation", "ts": 0.0, "dur": 99.0, "name": "around"},
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    assert list(busy_intervals(path)) == [(10.0, 12.0), (14.0, 15.0)]


@pytest.mark.parametrize(
    ("goal", "score", "verdict"),
    [
        (goals.DECODE_ATTENTION, 0.90, Verdict.AIM),
        (goals.DECODE_ATTENTION, 0.80, Verdict.FLOOR),
        (goals.DECODE_ATTENTION, 0.799, Verdict.BELOW),
        (goals.DECODE_STEP, 1.15, Verdict.AIM),
        (goals.DECODE_STEP, 1.35, Verdict.FLOOR),
        (goals.DECODE_STEP, 1.36, Verdict.BELOW),
        (goals.LAUNCH_GAPS, 0.0, Verdict.AIM),
        (goals.LAUNCH_GAPS, 0.031, Verdict.BELOW),
        (goals.INT4_SPEED, 2.6, Verdict.AIM),
        (goals.INT4_SPEED, 1.99, Verdict.BELOW),
        (goals.DECODE_ATTENTION, math.nan, Verdict.BELOW),
        (goals.LAUNCH_GAPS, math.nan, Verdict.BELOW),
    ],
)
def test_a_score_is_judged_by_floor_and_aim(goal: goals.Goal, score: float, verdict: Verdict) -> None:
    assert goal.verdict(score) is verdict


def test_the_table_asks_what_the_issue_asks() -> None:
    assert [(goal.floor, goal.aim) for goal in GOALS] == [
        (0.80, 0.90),
        (0.50, 0.65),
        (0.65, 0.80),
        (0.55, 0.70),
        (1.35, 1.15),
        (0.03, 0.01),
        (2.0, 2.6),
    ]


def test_a_row_says_figure_bound_percent_floor_and_verdict() -> None:
    line = row(goals.DECODE_ATTENTION, 85.0).line()
    for part in (
        "85 GB/s of 100 (copy bandwidth)",
        "85.0%",
        "at least 80.0%",
        "aim 90.0%",
        "floor reached",
    ):
        assert part in line
    assert "1.20x; at most 1.35x, aim 1.15x: floor reached" in row(goals.DECODE_STEP, 120.0).line()
    assert "| 85.0% | ≥ 80.0% | 90.0% | floor reached |" in as_markdown([row(goals.DECODE_ATTENTION, 85.0)])


def test_a_row_without_a_bound_is_below_its_floor() -> None:
    nothing = row(goals.LAUNCH_GAPS, 0.0, bound=0.0)
    assert math.isnan(nothing.score)
    assert nothing.verdict is Verdict.BELOW


def test_what_would_be_cut_is_not_begun() -> None:
    times = iter([100.0, 130.0, 130.0, 191.0])
    budget = Budget(60.0, lambda: next(times))
    assert budget.refusal(30.0) is None
    assert budget.refusal(31.0) == "takes about 31 s, 30 s of 60 s are left"
    assert budget.refusal(1.0) == "takes about 1 s, 0 s of 60 s are left"


def test_results_name_chip_versions_and_date_and_keep_every_line(tmp_path: Path) -> None:
    began = now()
    run = Run({"chip": "NVIDIA H200", "torch": "2.11.0"}, began, tmp_path)
    run.rows.append(row(goals.DECODE_ATTENTION, 95.0))
    run.checks["decode attention"] = "ok"
    assert run.is_good
    run.skipped.append(Skipped(name="serving", reason="takes about 40 s, 3 s of 225 s are left"))
    path = run.write()
    assert path.name == f"gpu-nvidia-h200-{began:%Y%m%dT%H%M%SZ}.json"
    kept = json.loads(path.read_text())
    assert kept["machine"]["torch"] == "2.11.0"
    assert kept["began"] == began.isoformat()
    assert kept["rows"][0]["verdict"] == "aim reached"
    assert kept["rows"][0]["score"] == 0.95
    text = path.with_suffix(".md").read_text()
    assert "serving: not measured: takes about 40 s" in text
    assert "torch 2.11.0" in text


def test_a_run_is_not_good_with_a_wrong_kernel_an_error_a_row_below_its_floor_or_no_worker(
    tmp_path: Path,
) -> None:
    for spoil in (
        lambda run: run.checks.update(a="differs by 1"),
        lambda run: run.failed.append("w8a8: RuntimeError: no"),
        lambda run: run.rows.append(row(goals.DECODE_ATTENTION, 10.0)),
        lambda run: run.skipped.append(Skipped(name="serving", reason="grpc is not here")),
    ):
        run = Run({"chip": "x"}, now(), tmp_path)
        assert run.is_good
        spoil(run)
        assert not run.is_good


def test_prefill_fills_every_page_that_the_step_reads_but_its_last_token() -> None:
    steps = list(prefill_batches(5, 20, page_size=16, vocab_size=50, chunk=45))
    step = decode_batch(5, 20, page_size=16, vocab_size=50)
    assert [len(batch.context_len) for batch in steps] == [2, 2, 1]
    assert all(len(batch.ids) <= 45 for batch in steps)
    assert [batch.page_table.tolist() for batch in steps] == [
        step.page_table[first : first + 2].tolist() for first in (0, 2, 4)
    ]
    assert sorted(step.page_table.flatten()) == list(range(10)), "no page is anybody else's"
    assert all((batch.context_len == 19).all() for batch in steps)
    assert (step.positions == 19).all()


def test_random_weights_are_codes_but_for_embedding_and_head() -> None:
    weights = RandomWeights(
        {"embedding": (8, 128), "head": (8, 128), "layers.0.o": (4, 128), "norm": (128,)}, group=64
    )
    assert weights.read_quantized("embedding") is weights.read_quantized("head") is None
    assert weights.read_quantized("norm") is None
    codes = weights.read_quantized("layers.0.o")
    assert codes is not None
    assert (codes.bits, codes.group, codes.codes.shape) == (4, 64, (4, 128))
    assert abs(codes.to_float32()).max() <= 0.04
    assert (weights.read("norm") == 1).all()
    assert (weights.read("head") != weights.read("embedding")).any()
