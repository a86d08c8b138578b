"""Ranks that compute one model together draw what one process draws, and end together."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from services.artifacts.artifact import open_artifact
from services.chassis.fatal import FatalError
from services.domain.generation import SamplingParams
from services.domain.kv_layout import KvFormat
from tests.fakes.contract_executors import LIMITS, generate, sequence
from tests.unit.executors.batches import Part, make_batch
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder, save_gguf
from worker.engine.batch import Batch
from worker.executors.base import Executor, ExecutorFault
from worker.executors.ranks.group import GroupExecutor, load_group
from worker.executors.ranks.messages import RankSpec, pack_batch, unpack_batch
from worker.executors.ranks.processes import RankLost
from worker.executors.torch_executor import TorchExecutor, load_torch_executor
from worker.executors.triton_executor import load_triton_executor
from worker.plan.shard import CannotShard

pytestmark = pytest.mark.timeout(600)
"""Each rank is a process that imports torch."""

NUM_PAGES = 32
IDS = np.random.default_rng(0).integers(0, VOCAB, 60).tolist()
PAGES = [[5, 1, 7, 3], [2, 4, 0, 6]]


def spec_of(path: Path, size: int, **fields: Any) -> RankSpec:
    values: dict[str, Any] = {
        "executor": "torch",
        "device": "cpu",
        "path": str(path),
        "model_name": "tiny",
        "rank": 0,
        "size": size,
        "limits": LIMITS,
        "num_threads": 1,
        "limit_s": 120.0,
    }
    return RankSpec(**(values | fields))


@contextmanager
def group(path: Path, size: int, **fields: Any) -> Iterator[GroupExecutor]:
    made = load_group(open_artifact(path), spec_of(path, size, **fields))
    try:
        made.allocate(NUM_PAGES)
        yield made
    finally:
        made.close()
        pids = processes_of(made)
        made.end()
        assert not any(is_running(pid) for pid in pids)


def alone(path: Path) -> TorchExecutor:
    made = load_torch_executor(path, model_name="tiny", num_threads=1)
    made.allocate(NUM_PAGES)
    return made


def greedy_ids(executor: Executor) -> list[list[int]]:
    """Return what follows three prompts: one whole, one in chunks, one in a step of one token."""
    asked = [(1, 33, [1, 2, 3], 1000), (2, 36, [4, 5, 6], 7), (3, 1, [8, 9], 1)]
    return [
        list(generate(executor, sequence(seed, length, pages, temperature=0.0), 12, chunk))
        for seed, length, pages, chunk in asked
    ]


def logits(executor: GroupExecutor, parts: list[Part]) -> NDArray[np.float32]:
    local = executor._local
    assert isinstance(local, TorchExecutor)
    seen: list[NDArray[np.float32]] = []
    local.on_logits = lambda batch, found: seen.append(found.copy())
    executor.execute(make_batch(parts))
    local.on_logits = None
    return seen[0]


def processes_of(executor: GroupExecutor) -> list[int]:
    return [rank.process.pid for rank in executor._others._ranks]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four query heads that share one key-value head: two ranks hold a copy of it each."""
    model = make_model("llama", num_key_value_heads=1, vocab_size=208, attention_bias=True, mlp_bias=True)
    return save_folder(model, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[GroupExecutor]:
    with group(folder, 2) as made:
        yield made


def test_two_ranks_draw_what_one_process_draws(pair: GroupExecutor, folder: Path) -> None:
    assert greedy_ids(pair) == greedy_ids(alone(folder))


def test_a_groups_logits_are_those_of_one_process_but_for_rounding(pair: GroupExecutor, folder: Path) -> None:
    one = alone(folder)
    expected: list[NDArray[np.float32]] = []
    one.on_logits = lambda batch, found: expected.append(found.copy())
    parts = [Part(IDS[:21], 0, PAGES[0]), Part(IDS[7:16], 0, PAGES[1])]
    one.execute(make_batch(parts))
    assert np.abs(expected[0]).max() > 0.5
    np.testing.assert_allclose(logits(pair, parts), expected[0], rtol=0, atol=1e-4)


@pytest.mark.failure("B094")
def test_a_row_has_the_same_bits_alone_in_a_batch_in_chunks_and_after_a_hit(pair: GroupExecutor) -> None:
    whole = logits(pair, [Part(IDS[:40], 0, PAGES[0])])
    batch = logits(pair, [Part(IDS[7:16], 0, PAGES[1]), Part(IDS[:40], 0, PAGES[0])])
    assert np.array_equal(batch[9:], whole)
    for start, end in ((0, 5), (5, 18), (18, 39), (39, 40)):
        assert np.array_equal(logits(pair, [Part(IDS[start:end], start, PAGES[0])]), whole[start:end])
    hit = logits(pair, [Part(IDS[16:40], 16, [PAGES[0][0], 10, 11])])
    assert np.array_equal(hit, whole[16:])


def test_rank_0_draws_with_its_own_parameters(pair: GroupExecutor, folder: Path) -> None:
    asked = {"temperature": 1.0, "num_logprobs": 2}
    ours = generate(pair, sequence(4, 20, [1, 2, 3], **asked), 8)
    theirs = generate(alone(folder), sequence(4, 20, [1, 2, 3], **asked), 8)
    assert ours == theirs


def test_the_profile_is_the_whole_models_and_its_digests_name_the_ranks(
    pair: GroupExecutor, folder: Path
) -> None:
    one, ours = alone(folder).profile, pair.profile
    assert ours.vocab_size == one.vocab_size
    assert ours.max_context_tokens == one.max_context_tokens
    assert ours.numerics != one.numerics
    assert ours.namespace != one.namespace
    # One key-value head, held twice.
    assert ours.page_bytes == 2 * one.page_bytes
    assert one.weight_bytes < ours.weight_bytes < 2 * one.weight_bytes


def test_memory_can_be_allocated_anew_as_after_a_profile_run(pair: GroupExecutor) -> None:
    before = greedy_ids(pair)
    pair.close()
    pair.allocate(NUM_PAGES)
    assert greedy_ids(pair) == before


def test_what_does_not_divide_is_refused_and_no_process_is_left(folder: Path) -> None:
    with pytest.raises(CannotShard, match="4 query heads do not divide by 3 ranks"):
        load_group(open_artifact(folder), spec_of(folder, 3))


@pytest.mark.slow
def test_a_rank_that_cannot_load_is_named_with_its_reason(folder: Path, tmp_path: Path) -> None:
    # The others open the path of their spec, rank 0 what it is given.
    with pytest.raises(FatalError, match=r"rank 1 of 2: .*nothing-here"):
        load_group(open_artifact(folder), spec_of(tmp_path / "nothing-here", 2))


def test_a_killed_rank_ends_the_group_with_its_name_even_when_idle(folder: Path) -> None:
    lost: list[ExecutorFault] = []
    with group(folder, 2) as made:
        made.watch(lost.append)
        (pid,) = processes_of(made)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not lost and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [str(fault) for fault in lost] == ["rank 1 of 2 ended (SIGKILL)"]
        with pytest.raises(RankLost, match=r"rank 1 of 2 ended \(SIGKILL\)"):
            made.execute(make_batch([Part(IDS[:3], 0, [0])]))


@pytest.mark.slow
def test_a_rank_that_stands_still_is_waited_for_no_longer_than_its_limit(folder: Path) -> None:
    with group(folder, 2, limit_s=1.0) as made:
        (pid,) = processes_of(made)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ExecutorFault):
            made.execute(make_batch([Part(IDS[:3], 0, [0])]))
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["Q8_0", "gemma3"])
@pytest.mark.slow
def test_blocks_and_windows_are_shared_too(kind: str, tmp_path: Path) -> None:
    if kind == "gemma3":
        path = save_folder(make_model("gemma3", vocab_size=208), tmp_path)
    else:
        model = make_model("llama", vocab_size=208, intermediate_size=128)
        path = save_gguf(model, tmp_path / "tiny.gguf", kind)
    expected = greedy_ids(alone(path))
    with group(path, 2) as made:
        assert greedy_ids(made) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_four_ranks_draw_what_one_process_draws(kv_heads: int, tmp_path: Path) -> None:
    path = save_folder(make_model("llama", vocab_size=208, num_key_value_heads=kv_heads), tmp_path)
    expected = greedy_ids(alone(path))
    with group(path, 4) as made:
        assert greedy_ids(made) == expected
        parts = [Part(IDS[:40], 0, PAGES[0])]
        whole = logits(made, parts)
        batch = logits(made, [Part(IDS[7:16], 0, PAGES[1]), *parts])
        assert np.array_equal(batch[9:], whole), "sums are added up in one order"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "kv_heads", "size", "int8_rows"),
    [("floats", 1, 2, False), ("Q8_0", 2, 2, False), ("floats", 2, 4, False), ("Q8_0", 2, 2, True)],
)
def test_triton_shares_a_model_by_the_same_plan(
    kind: str, kv_heads: int, size: int, int8_rows: bool, tmp_path: Path
) -> None:
    """Interpreted, over gloo: what is launched on GPUs, but for the library that carries the exchanges.

    Rows of int8 codes are one process's of Triton: torch rounds no row.
    """
    shape = {"vocab_size": 208, "num_hidden_layers": 1, "num_key_value_heads": kv_heads}
    model = make_model("llama", intermediate_size=64, **shape)
    path = (
        save_folder(model, tmp_path) if kind == "floats" else save_gguf(model, tmp_path / "tiny.gguf", kind)
    )
    asked = [(1, 20, [1, 2, 3]), (2, 3, [4, 5])]
    drawn = []
    limits = replace(LIMITS, max_step_tokens=32, max_sequences=2)
    one: Executor = alone(path)
    if int8_rows:
        one = load_triton_executor(
            path,
            model_name="tiny",
            dtype=torch.float32,
            kv_format=KvFormat.F32,
            int8_rows=True,
            device="cpu",
            limits=limits,
        )
        one.allocate(NUM_PAGES)
        assert any("w8a8" in use.kernel for use in one.profile.kernels)
    for made in (one, group(path, size, executor="triton", limits=limits, int8_rows=int8_rows)):
        with made if isinstance(made, AbstractContextManager) else nullcontext(made) as executor:
            drawn.append([list(generate(executor, sequence(*one, temperature=0.0), 4, 8)) for one in asked])
    assert drawn[0] == drawn[1]


def test_a_spec_is_the_same_at_the_other_end(folder: Path) -> None:
    spec = spec_of(folder, 2, graph_sizes=(1, 2), kv_format="int8")
    assert RankSpec.from_json(json.dumps(asdict(spec)).encode()) == spec


def test_a_batch_is_the_same_at_the_other_end() -> None:
    batch = make_batch([Part(IDS[:5], 0, [1, 2]), Part(IDS[:3], 17, [4])])
    found = unpack_batch(bytearray(pack_batch(batch)))
    for name in ("ids", "positions", "query_start", "context_len", "page_table", "out_rows"):
        ours, theirs = getattr(batch, name), getattr(found, name)
        assert ours.shape == theirs.shape
        assert np.array_equal(ours, theirs)
    assert found.sampling == ()
    assert isinstance(found, Batch)


def test_prompts_parameters_and_seeds_do_not_leave_rank_0() -> None:
    batch = make_batch([Part(IDS[:5], 0, [1])], every_row=False)
    batch.sampling[0].params = SamplingParams(temperature=0, seed=77)
    assert unpack_batch(bytearray(pack_batch(batch))).sampling == ()
