"""No step reserves memory, whatever it holds, alone or among ranks; on a fake device, which sees it all."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.domain.kv_layout import KvFormat
from tests.fakes.contract_executors import LIMITS, NUM_PAGES, tiny_triton
from tests.fakes.echo_ranks import echo_ranks
from tests.fakes.engine_harness import engine_config
from tests.fakes.fake_stream import FakeStream
from tests.unit.executors.mixed_requests import mixed_request
from tests.unit.executors.tiny_models import make_model, save_gguf
from worker.engine.batch_builder import build_ahead, build_batch
from worker.engine.step_scheduler import StepScheduler
from worker.executors.torch_ranks import Ranks
from worker.executors.triton_executor import TritonExecutor, load_triton_executor
from worker.executors.triton_runner import StepRunner

pytestmark = pytest.mark.timeout(600)


def made(stream: FakeStream, num_ranks: int, rank: int = 0) -> TritonExecutor:
    """Return an executor by itself, or one of some ranks."""
    executor = tiny_triton(stream, (4, 8), None if num_ranks == 1 else echo_ranks(num_ranks, rank))
    executor.allocate(NUM_PAGES)
    return executor


def serve(executor: TritonExecutor, stream: FakeStream, num_requests: int) -> tuple[Counter[str], int]:
    """Serve mixed requests; return what the device was asked, and how many steps there were.

    Steps run ahead as in the step loop, in one thread, so that every operation of torch's is seen.
    """
    config = engine_config(num_pages=NUM_PAGES, max_context_tokens=64, vocab_size=200)
    scheduler = StepScheduler(config)
    before, num_steps = stream.calls.copy(), 0
    rng = np.random.default_rng(0)
    left = list(range(1, num_requests + 1))
    with stream.steady():
        plan, launched = scheduler.plan(0.0), None
        scheduler.apply(plan, None, 0.0)
        while left or scheduler.num_live:
            now = float(num_steps)
            if launched is None:
                for _ in range(min(len(left), 3 if scheduler.num_live < 12 else 0)):
                    scheduler.post(mixed_request(left.pop(), rng, one_penalty_in=20))
                plan = scheduler.plan(now)
                if not plan.num_rows:
                    scheduler.apply(plan, None, now)
                    continue
                launched = executor.launch(build_batch(plan))
            ahead = scheduler.plan_ahead(now)
            behind = None if ahead is None else executor.launch(build_ahead(*ahead))
            scheduler.apply(plan, executor.collect(launched), now)
            plan, launched = (plan if ahead is None else ahead[0]), behind
            num_steps += 1
    return stream.calls - before, num_steps


@pytest.mark.parametrize(
    ("num_ranks", "rank", "num_requests"),
    [
        (1, 0, 100),
        (2, 1, 100),
        pytest.param(1, 0, 10_000, marks=pytest.mark.slow),
        pytest.param(2, 1, 2_000, marks=pytest.mark.slow),
    ],
)
def test_mixed_requests_reserve_no_memory(num_ranks: int, rank: int, num_requests: int) -> None:
    """Prompts of any length, penalties, scores and choices: nothing is made for any of them."""
    stream = FakeStream(computes=False)
    executor = made(stream, num_ranks, rank)
    reserved = stream.reserved_bytes
    calls, num_steps = serve(executor, stream, num_requests)
    assert stream.reserved_bytes == reserved
    assert calls["synchronize"] == calls["download"] == num_steps
    for name in ("replay", "ragged_kernel", "aten.index_select.out"):
        assert calls[name] > num_requests // 20, name
    assert bool(calls["gather_shard_kernel"]) == (num_ranks > 1)


def test_codes_windows_and_narrow_kv_reserve_no_memory_either(tmp_path: Path) -> None:
    """Gemma 3 in Q8_0, rows in int8, KV in int8: norms that quantise, scales in pages, two rotations."""
    stream = FakeStream(computes=False)
    executor = load_triton_executor(
        save_gguf(make_model("gemma3", vocab_size=208), tmp_path / "tiny.gguf", "Q8_0"),
        model_name="tiny",
        page_size=LIMITS.page_size,
        dtype=torch.float32,
        kv_format=KvFormat.INT8,
        int8_rows=True,
        device="cpu",
        limits=LIMITS,
        graph_sizes=(4, 8),
        stream=stream,
    )
    assert any("w8a8" in use.kernel for use in executor.profile.kernels)
    executor.allocate(NUM_PAGES)
    reserved = stream.reserved_bytes
    calls, num_steps = serve(executor, stream, 40)
    assert stream.reserved_bytes == reserved
    assert calls["synchronize"] == calls["download"] == num_steps
    for name in ("replay", "ragged_kernel", "rope_store_kernel", "linear_kernel"):
        assert calls[name] > 2, name


@pytest.mark.parametrize("where", ["exchange", "step", "stream"])
def test_a_step_that_reserves_memory_is_found(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: room made anew for an exchange, for draws, and by the stream."""
    stream = FakeStream(computes=False)
    executor = made(stream, 2)
    draw, all_of = StepRunner._draw, Ranks._all

    def draws_into_new_memory(runner: StepRunner, logits: Any, sampling: Any) -> None:
        draw(runner, torch.empty_like(logits), sampling)

    def allocates(runner: StepRunner, logits: Any, sampling: Any) -> None:
        stream.allocate(1)

    def exchanges_into_new_memory(ranks: Ranks, x: Any) -> Any:
        ranks._received.clear()
        return all_of(ranks, x)

    if where == "exchange":
        monkeypatch.setattr(Ranks, "_all", exchanges_into_new_memory)
    else:
        monkeypatch.setattr(StepRunner, "_draw", draws_into_new_memory if where == "step" else allocates)
    with pytest.raises(AssertionError, match=r"allocates or waits within a step|a step allocates 1 bytes"):
        serve(executor, stream, 20)
