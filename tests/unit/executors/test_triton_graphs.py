"""Captured decode, the memory of steps and what a step may do, on a fake device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fakes.contract_executors import (
    NUM_PAGES,
    PAGE,
    Sequence,
    batch_of,
    generate,
    sequence,
    step,
    tiny_triton,
)
from tests.fakes.engine_harness import engine_config
from tests.fakes.failing_device import SAYS, FailingStream
from tests.fakes.fake_stream import FakeStream
from tests.fakes.interpreted_dots import use_one_order
from tests.fakes.served import Served
from tests.unit.executors.mixed_requests import mixed_request
from worker.executors.base import ExecutorFault
from worker.executors.triton_executor import TritonExecutor

pytestmark = pytest.mark.timeout(600)
"""The interpreter takes a tenth of a second for each product."""

SIZES = (4, 8)


def made(stream: FakeStream, sizes: tuple[int, ...] = SIZES) -> TritonExecutor:
    executor = tiny_triton(stream, sizes)
    executor.allocate(NUM_PAGES)
    return executor


def prefilled(executor: TritonExecutor) -> list[Sequence]:
    """Prefill three sequences. Page 0 is where padding would store that went to no page of its own."""
    sequences = [
        sequence(1, 2, [0], repetition_penalty=1.5),
        sequence(2, 1, [3, 9], num_logprobs=2),
        sequence(3, 3, [1], temperature=0.0),
    ]
    step(executor, [(each, len(each.prompt_ids)) for each in sequences])
    return sequences


def watched(executor: TritonExecutor) -> list[NDArray[np.float32]]:
    """Return the logits of every step from now on."""
    seen: list[NDArray[np.float32]] = []
    executor.on_logits = lambda batch, logits: seen.append(logits)
    return seen


def feed(executor: TritonExecutor, work: list[tuple[Sequence, int]], feeds: list[int]) -> Any:
    return executor.launch(replace(batch_of(work), feeds=np.array(feeds, np.int32)))


def test_captured_and_overlapped_decode_has_the_bits_of_eager_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows padded to four, and once more, fed by what was just drawn and in another order; then one row.

    Nobody sees the padding, and it writes to nobody's page.
    """
    use_one_order(monkeypatch)
    eager, captured = FakeStream(), FakeStream()
    theirs = made(eager, ())
    expected, (a, b, c) = watched(theirs), prefilled(theirs)
    for rows in ((b, c), (b, c), (a,)):
        step(theirs, [(each, 1) for each in rows])
    ours = made(captured)
    found, (a2, b2, c2) = watched(ours), prefilled(ours)
    with captured.steady():
        launched = ours.launch(batch_of([(b2, 1), (c2, 1)]))
        behind = feed(ours, [(c2, 1), (b2, 1)], [1, 0])
        first, second = ours.collect(launched), ours.collect(behind)
        step(ours, [(a2, 1)])
    assert (eager.calls["replay"], captured.calls["replay"]) == (0, 3)
    found[2] = found[2][::-1]
    assert [logits.shape[0] for logits in found] == [3, 2, 2, 1]
    for mine, other in zip(found, expected, strict=True):
        assert np.array_equal(mine, other)
        assert np.isfinite(mine).all()
    assert a2.output_ids == a.output_ids
    assert [first.token_ids[0], second.token_ids[1]] == b.output_ids[1:]
    assert [first.token_ids[1], second.token_ids[0]] == c.output_ids[1:]
    assert first.top[0] is not None
    assert first.top[1] is None


def test_a_chunk_of_a_prompt_beside_rows_that_are_fed_has_the_bits_of_steps_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first token of a prompt and a row are fed into a step with a further chunk of another prompt."""
    use_one_order(monkeypatch)

    def sequences() -> list[Sequence]:
        return [sequence(1, 2, [0]), sequence(2, 3, [3, 9], num_logprobs=2), sequence(3, 8, [1])]

    theirs = made(FakeStream(), ())
    expected, (a, b, c) = watched(theirs), sequences()
    step(theirs, [(a, 2)])
    step(theirs, [(a, 1), (b, 3), (c, 4)])
    step(theirs, [(a, 1), (b, 1), (c, 4)])
    stream = FakeStream()
    ours = made(stream)
    found, (a2, b2, c2) = watched(ours), sequences()
    step(ours, [(a2, 2)])
    with stream.steady():
        launched = ours.launch(batch_of([(a2, 1), (b2, 3), (c2, 4)]))
        behind = feed(ours, [(b2, 1), (a2, 1), (c2, 4)], [1, 0])
        first, second = ours.collect(launched), ours.collect(behind)
    found[2] = found[2][[1, 0, 2]]
    for mine, other in zip(found, expected, strict=True):
        assert np.array_equal(mine, other)
    drawn = [*first.token_ids.tolist(), *second.token_ids.tolist()]
    assert drawn == [a.output_ids[1], b.output_ids[0], b.output_ids[1], a.output_ids[2], c.output_ids[0]]


def test_the_step_behind_is_queued_before_anybody_waits() -> None:
    stream = FakeStream(computes=False)
    executor = made(stream)
    rows = [(sequence(i, 1, [i]), 1) for i in range(2)]
    step(executor, rows)
    before = stream.calls.copy()
    launched = executor.launch(batch_of(rows))
    behind = feed(executor, rows, [0, 1])
    assert "synchronize" not in stream.calls - before
    assert stream.calls - before == {"upload": 2, "aten.index_select.out": 1, "replay": 2, "download": 2}
    for each in (launched, behind):
        executor.collect(each)
    assert (stream.calls - before)["synchronize"] == 2


def test_a_step_takes_the_next_larger_graph_and_waits_once() -> None:
    stream = FakeStream(computes=False)
    executor = made(stream)
    sequences = [sequence(i, 1, [i]) for i in range(5)]
    for count, replays in ((1, 1), (4, 1), (5, 1)):
        before = stream.calls.copy()
        rows = [(each, 1) for each in sequences[:count]]
        step(executor, rows)
        for each, _ in rows:
            each.num_computed, each.output_ids = 0, []
        made_calls = stream.calls - before
        assert made_calls == {"upload": 1, "replay": replays, "download": 1, "synchronize": 1}
        assert list(stream.order)[-4:] == ["upload", "replay", "download", "synchronize"]


def test_a_step_with_a_chunk_is_launched_by_itself_and_waits_once() -> None:
    stream = FakeStream(computes=False)
    executor = made(stream)
    before = stream.calls.copy()
    step(executor, [(sequence(1, 1, [1]), 1), (sequence(2, 5, [2], repetition_penalty=2.0), 5)])
    made_calls = stream.calls - before
    assert "replay" not in made_calls
    assert made_calls["upload"] == 3, "numbers, and the ids and biases of a penalty"
    assert made_calls["download"] == made_calls["synchronize"] == 1
    assert made_calls["ragged_kernel"] == 1


def test_two_steps_under_way_never_touch_each_others_memory() -> None:
    """The step loop itself, which queues a decode step while the one before it runs."""
    stream = FakeStream(computes=False)
    config = engine_config(num_pages=2 * NUM_PAGES, max_context_tokens=64, vocab_size=200, max_waiting=40)
    rng = np.random.default_rng(0)
    # One with a penalty keeps all from running ahead, so there are few.
    requests = [mixed_request(handle, rng, one_penalty_in=30) for handle in range(1, 41)]
    served = Served(tiny_triton(stream, SIZES), config, requests)
    reserved = stream.reserved_bytes
    served.run()
    assert len(served.ended) == 40
    assert stream.reserved_bytes == reserved
    assert stream.calls["aten.index_select.out"] > 0, "some steps were fed by those before them"


def test_memory_that_is_not_there_is_a_fault_with_the_sum() -> None:
    executor = tiny_triton(FakeStream(memory_bytes=1 << 20), SIZES)
    with pytest.raises(
        ExecutorFault, match=r"allocating 1000000 pages of \d+ bytes ran out of device memory: CUDA"
    ):
        executor.allocate(1_000_000)


@pytest.mark.parametrize("error", SAYS)
@pytest.mark.parametrize("stage", ["upload", "ragged_kernel", "replay", "download", "synchronize"])
def test_an_executor_whose_device_failed_computes_nothing_more(
    stage: str, error: str, tmp_path: Path
) -> None:
    stream = FailingStream(stage=stage, error=error, trigger=tmp_path / "fail")
    executor = made(stream)
    a, b = sequence(1, 4, [1]), sequence(2, 4, [2])
    step(executor, [(a, 4)])
    stream.trigger.touch()
    # A step that is launched by itself, or one that is replayed.
    work = [(a, 1)] if stage == "replay" else [(a, 1), (b, 4)]
    for _ in range(2):
        with pytest.raises(ExecutorFault) as raised:
            step(executor, work)
        assert str(raised.value) == f"a step {SAYS[error]}"
    executor.close()


@pytest.mark.parametrize("error", SAYS)
def test_a_device_that_fails_while_decode_is_captured_leaves_an_executor_without_memory(
    error: str, tmp_path: Path
) -> None:
    stream = FailingStream(stage="capture", error=error, trigger=tmp_path / "fail")
    stream.trigger.touch()
    with pytest.raises(ExecutorFault, match=r"^allocating \d+ pages of \d+ bytes ") as raised:
        made(stream)
    assert str(raised.value).endswith(SAYS[error])


def test_memory_can_be_made_anew_after_a_profile_run() -> None:
    executor = made(FakeStream(computes=False))
    executor.close()
    executor.allocate(NUM_PAGES)
    assert len(generate(executor, sequence(1, PAGE, [1, 2]), 3)) == 3
