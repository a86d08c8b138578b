"""The calls that `CudaStream` makes of torch's CUDA interface, in order; the double checks arguments."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.fakes.contract_executors import NUM_PAGES, batch_of, sequence, step, tiny_triton
from tests.fakes.cuda_double import CudaDouble, like
from tests.fakes.doubling import Doubling
from tests.fakes.fake_stream import FakeStream
from tests.fakes.interpreted_dots import use_one_order
from worker.executors.base import ExecutorFault
from worker.executors.triton_executor import TritonExecutor

pytestmark = pytest.mark.timeout(600)

SIZES = (4, 8)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> CudaDouble:
    return CudaDouble(monkeypatch, FakeStream(computes=False))


def made(double: CudaDouble) -> TritonExecutor:
    executor = tiny_triton(double.make(), SIZES)
    executor.allocate(NUM_PAGES)
    return executor


def since(double: CudaDouble, count: int) -> list[str]:
    return double.log[count:]


def test_memory_of_steps_is_made_and_pinned_once_and_each_size_captured_once(double: CudaDouble) -> None:
    made(double)
    log = double.log
    first_capture = log.index("begin capture")
    assert log.count("stream") == 1
    # Two turns of what goes in (numbers, entries, biases) and what comes back.
    assert log.count("pin") == 8
    assert log.count("event") == 2
    assert set(log[first_capture:]) == {"begin capture", "end capture", "upload", "wait for device"}
    assert log.count("begin capture") == log.count("end capture") == len(SIZES)
    assert log[:first_capture].count("wait for device") == 2, (
        "what was cleared, and the launch before capture"
    )


def test_what_is_captured_has_been_launched_and_has_ended_before(double: CudaDouble) -> None:
    """Compiling and loading a kernel may not happen inside of a capture."""
    doubling = Doubling(double.make())
    count = len(double.log)
    doubling.stream.capture(doubling.launch)
    assert since(double, count) == ["wait for device", "begin capture", "end capture"]
    assert double.device.calls["aten.mul.out"] == 1, "the other one lies in the graph"


def test_a_decode_step_is_one_copy_in_a_replay_a_copy_out_and_one_wait(double: CudaDouble) -> None:
    executor = made(double)
    count = len(double.log)
    with double.device.steady():
        step(executor, [(sequence(i, 1, [i]), 1) for i in range(3)])
    assert since(double, count) == ["upload", "replay", "download", "record", "wait for event"]


def test_a_mixed_step_waits_once_too(double: CudaDouble) -> None:
    executor = made(double)
    count = len(double.log)
    with double.device.steady():
        step(executor, [(sequence(1, 1, [1]), 1), (sequence(2, 5, [2], repetition_penalty=2.0), 5)])
    uploads = ["upload"] * 3  # Numbers, and the ids and biases of a penalty.
    assert since(double, count) == [*uploads, "download", "record", "wait for event"]


def test_the_step_behind_is_queued_before_anybody_waits(double: CudaDouble) -> None:
    executor = made(double)
    rows = [(sequence(i, 1, [i]), 1) for i in range(2)]
    step(executor, rows)
    count = len(double.log)
    with double.device.steady():
        launched = executor.launch(batch_of(rows))
        behind = executor.launch(replace(batch_of(rows), feeds=np.array([0, 1], np.int32)))
        queued = ["upload", "replay", "download", "record"]
        assert since(double, count) == queued * 2
        for each in (launched, behind):
            executor.collect(each)
    assert since(double, count + 8) == ["wait for event"] * 2


@pytest.mark.slow
def test_a_real_stream_draws_what_the_fake_one_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    use_one_order(monkeypatch)
    drawn = []
    for stream in (FakeStream(), CudaDouble(monkeypatch, FakeStream()).make()):
        executor = tiny_triton(stream, (4,))
        executor.allocate(NUM_PAGES)
        rows = [sequence(1, 2, [0], repetition_penalty=1.5), sequence(2, 3, [1], num_logprobs=2)]
        step(executor, [(each, len(each.prompt_ids)) for each in rows])
        for _ in range(2):
            step(executor, [(each, 1) for each in rows])
        drawn.append([each.output_ids for each in rows])
    assert drawn[0] == drawn[1]


def test_a_device_that_fails_ends_a_step_by_the_same_fault(double: CudaDouble) -> None:
    executor = made(double)
    launched = executor.launch(batch_of([(sequence(1, 1, [1]), 1)]))
    double.device.error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(ExecutorFault, match="a step failed on the device: CUDA error"):
        executor.collect(launched)


def test_other_memory_than_pinned_is_not_copied_behind_the_hosts_back(double: CudaDouble) -> None:
    stream = double.make()
    plain = FakeStream().pinned(8)
    with pytest.raises(AssertionError, match="while everybody waits"):
        stream.upload(plain, stream.allocate(8), 8)
    with pytest.raises(AssertionError, match="while everybody waits"):
        stream.download(stream.allocate(8), plain, 8)


def test_the_double_refuses_what_torch_would_refuse(double: CudaDouble) -> None:
    cuda = double.module.cuda
    with pytest.raises(TypeError, match="unexpected keyword argument 'wait'"):
        cuda.synchronize(wait=True)
    with pytest.raises(TypeError, match="too many positional arguments"):
        cuda.Event().record(cuda.Stream(), 1)
    with pytest.raises(AttributeError):
        _ = cuda.current_stream
    stream, memory = double.make(), torch.zeros(8, dtype=torch.uint8)
    pinned = stream.pinned(8)
    with stream.launching(), pytest.raises(AssertionError, match="the host waits"):
        memory.copy_(pinned.tensor)  # type: ignore[attr-defined]
    assert like(torch.cuda.synchronize)(lambda device: device)("cuda:0") == "cuda:0"
