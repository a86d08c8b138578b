"""`quire plan`'s arithmetic: what is added up, what fits, and what is proposed where nothing does."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.chassis.fatal import ConfigError, FatalError
from services.commands.plan import main
from services.domain.kv_layout import KvFormat
from tests.unit.executors.tiny_models import make_model, save_folder
from worker.memory_changes import changes_that_fit
from worker.memory_plan import (
    PROCESS_BYTES,
    Setup,
    WeightStorage,
    Workload,
    num_ranks,
    page_bytes_of,
    plan_memory,
    weights_of,
)
from worker.models.registry import build_model
from worker.plan.arena import pack
from worker.plan.shard import shard

CONFIG = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
PLAN = build_model(CONFIG).plan
LOAD = Workload(context_tokens=4096, prompt_tokens=1500, output_tokens=300, concurrency=32)
SETUP = Setup(weights=WeightStorage.BF16, kv=KvFormat.BF16, workload=LOAD)


def test_the_parts_are_what_they_are_made_of() -> None:
    found = plan_memory(PLAN, SETUP, 8 << 30)
    assert weights_of(PLAN, WeightStorage.F32) == 4 * 134_515_008
    assert found.weight_bytes == 2 * 134_515_008 + 2 * 61 * 576  # The norms stay float32.
    assert page_bytes_of(PLAN, KvFormat.BF16, 16) == 368_640
    assert found.kv_bytes == 32 * 113 * 368_640
    assert 0.10 <= found.headroom_bytes / (found.total_bytes - found.headroom_bytes) <= 0.15
    # A row for each request and 64 of a prompt that is scored; a cosine and a sine for each of 32 pairs.
    assert found.logits_bytes == (32 + 64) * 49152 * 4
    assert found.table_bytes == 4096 * 64 * 4
    # Steps of 512 tokens; the widest that lives at once is the product of gate and up, and what it becomes.
    assert found.activation_bytes >= 512 * 4 * (2 * 1536 + 1536)
    parts = found.weight_bytes + found.kv_bytes + found.activation_bytes
    parts += found.logits_bytes + found.table_bytes + PROCESS_BYTES
    assert found.total_bytes == parts + found.headroom_bytes


def test_a_large_vocabulary_costs_logits_and_a_long_context_rotations() -> None:
    wide = build_model(CONFIG | {"vocab_size": 262_144}).plan
    by_width = plan_memory(wide, SETUP, 0).logits_bytes / plan_memory(PLAN, SETUP, 0).logits_bytes
    assert by_width == pytest.approx(262_144 / 49_152)
    longer = replace(SETUP, workload=replace(LOAD, context_tokens=8192))
    tables = [plan_memory(PLAN, setup, 0).table_bytes for setup in (SETUP, longer)]
    assert tables[1] == 2 * tables[0]


def test_as_many_sequences_fit_as_it_says_and_no_more() -> None:
    fits = plan_memory(PLAN, SETUP, 2 << 30).num_sequences
    assert 32 < fits < 100

    def total(concurrency: int) -> int:
        return plan_memory(
            PLAN, replace(SETUP, workload=replace(LOAD, concurrency=concurrency)), 2 << 30
        ).total_bytes

    # Logits of more rows take a little too: one request of tolerance.
    assert total(fits - 1) <= 2 << 30 < total(fits + 1)


@pytest.mark.parametrize(
    ("budget_mb", "first"),
    [
        # One request of 32 is less than half the precision of anything.
        (1900, {"workload": replace(LOAD, concurrency=31)}),
        (1500, {"kv": KvFormat.INT8}),
        (700, {"workload": replace(LOAD, concurrency=5)}),
    ],
)
def test_the_smallest_change_comes_first_and_fits(budget_mb: int, first: dict[str, Any]) -> None:
    budget = budget_mb * 10**6
    assert not plan_memory(PLAN, SETUP, budget).fits
    changes = changes_that_fit(PLAN, SETUP, budget)
    assert all(change.fits for change in changes)
    assert changes[0].setup == replace(SETUP, **first)


@pytest.mark.parametrize("weights", [WeightStorage.INT8, WeightStorage.INT4])
@pytest.mark.parametrize("shipped_bytes", [None, 300_000_000])
def test_narrower_weights_come_first_where_they_alone_take_least(
    weights: WeightStorage, shipped_bytes: int | None
) -> None:
    # A quarter of the requests is the other way, and there is no narrower KV.
    setup = replace(
        SETUP, kv=KvFormat.INT8, workload=replace(LOAD, concurrency=4), shipped_bytes=shipped_bytes
    )
    wanted = replace(setup, weights=weights, shipped_bytes=None)
    changes = changes_that_fit(PLAN, setup, plan_memory(PLAN, wanted, 0).total_bytes)
    assert changes[0].setup == wanted


def test_the_command_says_how_each_change_is_made(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    assert main([str(path), "--memory", "1.8GB", "--context", "4096", "--kv", "bf16"]) == 1
    shown = " ".join(capsysbinary.readouterr().out.decode().split())
    assert re.search(r"it fits with --concurrency 29 \(.*?\): a worker's --max-sequences 29 or with ", shown)
    assert re.search(r"or with --kv int8 \(.*?\): a worker's --kv-format int8 or with ", shown)
    # A worker has no such flag.
    assert re.search(r"or with --weights int4 \(.*?\): quire quantize MODEL --to int4 -o OUT$", shown)


def test_a_long_context_alone_is_shortened_only_as_far_as_it_must() -> None:
    load = replace(LOAD, context_tokens=8192, prompt_tokens=100, output_tokens=50, concurrency=1)
    setup = replace(SETUP, workload=load)
    # Weights, process and activations leave room for a few thousand tokens of KV.
    budget = plan_memory(PLAN, replace(setup, workload=replace(load, context_tokens=4096)), 0).total_bytes
    shorter = [c for c in changes_that_fit(PLAN, setup, budget) if c.setup.workload.context_tokens < 8192]
    assert [c.setup.workload.context_tokens for c in shorter] == [4096]


def test_formats_are_combined_where_one_change_is_not_enough() -> None:
    setup = replace(SETUP, workload=replace(LOAD, concurrency=1))
    smallest = replace(setup, kv=KvFormat.INT8, weights=WeightStorage.INT4)
    budget = plan_memory(PLAN, smallest, 0).total_bytes
    (change,) = changes_that_fit(PLAN, setup, budget)
    assert (change.setup.kv, change.setup.weights) == (KvFormat.INT8, WeightStorage.INT4)
    assert changes_that_fit(PLAN, setup, 150_000_000) == []


def test_the_command_works_from_a_config_alone(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    code = main([str(path), "--memory", "1GB", "--context", "4096", "--json"])
    printed = json.loads(capsysbinary.readouterr().out)
    assert (code, printed["fits"]) == (1, False)
    assert printed["changes"][0]["fits"] is True
    assert main([str(path), "--memory", "24GB", "--context", "4096"]) == 0
    assert b"fits: " in capsysbinary.readouterr().out


SHARED = CONFIG | {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}


def test_ranks_share_weights_and_heads_and_a_head_is_held_twice_where_there_are_too_few() -> None:
    whole = build_model(SHARED).plan
    of_one = plan_memory(whole, SETUP, 0)
    # k and v of one head of 64 in 30 layers, in bf16; norms are every rank's.
    head = 2 * 30 * 64 * 512 * 2
    norms = 4 * 61 * 512
    for size, share_of_kv, copied in ((2, 2, 0.0), (4, 2, 0.5), (8, 2, 0.75)):
        own = shard(whole, rank=0, size=size).plan
        assert num_ranks(own) == size
        found = plan_memory(own, SETUP, 0)
        assert found.weight_bytes == (of_one.weight_bytes - norms) / size + norms + copied * head
        assert found.kv_bytes * share_of_kv == of_one.kv_bytes
        assert found.logits_bytes == of_one.logits_bytes, "every rank has whole rows"
        assert found.num_sequences == 0
    assert num_ranks(whole) == 1


def test_what_ranks_exchange_is_counted_as_they_reserve_it() -> None:
    """Whole rows of 512 from 2 ranks and their sum, or halves of the logits: what is more."""
    own = shard(build_model(SHARED).plan, rank=0, size=2).plan
    rows = max(512 * 512, (32 + 64) * 49152 // 2)
    arena = -(-4 * pack(own, num_tokens=512, num_outputs=512).size // (2 << 20)) * (2 << 20)
    assert plan_memory(own, SETUP, 0).activation_bytes - arena == 4 * rows * 3


def test_the_command_plans_each_rank(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHARED))
    printed = []
    for size in (1, 2, 4):
        flags = ["--tensor-parallel-size", str(size), "--context", "4096", "--json"]
        main([str(path), "--memory", "24GB", *flags])
        printed.append(json.loads(capsysbinary.readouterr().out))
    assert [one["ranks"] for one in printed] == [1, 2, 4]
    assert [one["num_kv_heads"] for one in printed] == [2, 1, 1]
    assert printed[0]["weight_bytes"] > printed[1]["weight_bytes"] > printed[2]["weight_bytes"]
    assert printed[0]["kv_bytes"] == 2 * printed[1]["kv_bytes"] == 2 * printed[2]["kv_bytes"]
    main([str(path), "--memory", "24GB", "--context", "4096", "--tensor-parallel-size", "4"])
    assert b"1 key-value heads a rank" in capsysbinary.readouterr().out


def test_a_file_is_planned_as_the_ranks_will_load_it(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = save_folder(make_model("llama", vocab_size=208, num_key_value_heads=1), tmp_path)
    taken = []
    for size in (1, 2):
        flags = ["--tensor-parallel-size", str(size), "--prompt", "8", "--output", "8", "--json"]
        main([str(path), "--memory", "4GB", *flags])
        taken.append(json.loads(capsysbinary.readouterr().out)["weight_bytes"])
    assert taken[0] / 2 < taken[1] < taken[0]


@pytest.mark.parametrize(
    ("packed", "held"),
    [
        ({}, "bf16"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, "int4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": False, "sym": True}, "int8"),
    ],
)
def test_a_config_alone_says_how_its_weights_are_held(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], packed: dict[str, object], held: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | ({"quantization_config": packed} if packed else {})))
    sizes = []
    for flags in ([], ["--weights", held]):
        main([str(path), "--memory", "24GB", "--context", "4096", "--json", *flags])
        printed = json.loads(capsysbinary.readouterr().out)
        assert printed["weights"] == held
        sizes.append(printed["weight_bytes"])
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("flags", "error", "says"),
    [
        (["--memory", "much"], ConfigError, "--memory"),
        (["--memory", "1GB", "--prompt", "5000", "--context", "4096"], ConfigError, "context_tokens 4096"),
        (["--memory", "1GB", "--context", "9000"], ConfigError, "the model's 8192"),
        (["--memory", "1GB", "--concurrency", "0"], ConfigError, "concurrency must be at least 1"),
        (
            ["--memory", "1GB", "--tensor-parallel-size", "2"],
            ConfigError,
            "--tensor-parallel-size 2: 9 query heads do not divide by 2 ranks",
        ),
        (["--memory", "1GB", "--tensor-parallel-size", "0"], ConfigError, "must be at least 1, got 0"),
    ],
)
def test_bad_flags_are_named(tmp_path: Path, flags: list[str], error: type[Exception], says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    with pytest.raises(error, match=says):
        main([str(path), *flags])


def test_a_config_of_no_model_is_refused_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(FatalError, match=r"config\.json: cannot be read"):
        main([str(path), "--memory", "1GB"])
