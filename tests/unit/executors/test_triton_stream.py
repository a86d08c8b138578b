"""What the fake stream finds: each test is a mistake that a GPU would answer with other tokens, at times."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.fakes.doubling import Doubling
from tests.fakes.fake_stream import FakeStream
from worker.executors.base import ExecutorFault
from worker.executors.triton_memory import ALIGNMENT, Field, PackedMemory
from worker.executors.triton_stream import device_faults


@pytest.fixture
def doubling() -> Doubling:
    return Doubling(FakeStream())


def test_a_forgotten_copy_shows(doubling: Doubling) -> None:
    graph = doubling.stream.capture(doubling.launch)
    doubling.fill(1, 2, 3, 4)
    graph.replay()
    doubling.download()
    doubling.event.synchronize()
    assert doubling.result() == [-2] * 4, "what nobody wrote is -1"


def test_a_result_is_not_read_before_its_copy_has_run(doubling: Doubling) -> None:
    doubling.download()
    with pytest.raises(AssertionError, match="touched while a copy"):
        doubling.result()
    doubling.event.synchronize()
    assert len(doubling.result()) == 4


def test_an_input_is_not_written_over_while_it_is_copied(doubling: Doubling) -> None:
    doubling.fill(1, 2, 3, 4)
    doubling.upload()
    with pytest.raises(AssertionError, match="touched while a copy"):
        doubling.fill(5, 6, 7, 8)


def test_an_event_that_was_recorded_too_early_does_not_wait_for_what_follows(doubling: Doubling) -> None:
    doubling.event.record()
    doubling.stream.download(doubling.memory.device, doubling.target, doubling.memory.num_bytes)
    doubling.event.synchronize()
    with pytest.raises(AssertionError, match="touched while a copy"):
        doubling.result()


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda d: d.stream.synchronize(),
        lambda d: d.upload(),
        lambda d: d.event.record(),
        lambda d: d.stream.allocate(16),
        lambda d: d.memory.tensor("x").sum(),
        lambda d: d.memory.tensor("x")[0].item(),
    ],
)
def test_what_cannot_be_captured_is_refused(
    doubling: Doubling, forbidden: Callable[[Doubling], object]
) -> None:
    with pytest.raises((RuntimeError, AssertionError), match=r"capturing|allocates or waits"):
        doubling.stream.capture(lambda: forbidden(doubling))


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda d: d.stream.allocate(16),
        lambda d: d.stream.pinned(16),
        lambda d: d.stream.event(),
        lambda d: torch.empty(4),
        lambda d: torch.zeros(4).sum(),
    ],
)
def test_a_steady_step_makes_nothing(doubling: Doubling, forbidden: Callable[[Doubling], object]) -> None:
    stream = doubling.stream
    assert isinstance(stream, FakeStream)
    with stream.steady(), pytest.raises(AssertionError, match="a step"):
        forbidden(doubling)


def test_every_error_of_a_device_is_one_fault_that_says_what_happened() -> None:
    stream = FakeStream(memory_bytes=1000)
    with (
        pytest.raises(
            ExecutorFault, match=r"loading ran out of device memory: CUDA out of memory.*1001 bytes"
        ) as raised,
        device_faults("loading"),
    ):
        stream.allocate(1001)
    assert "\n" not in str(raised.value)
    stream.error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nDetails.")
    stream.event()
    for _ in range(2):
        with (
            pytest.raises(
                ExecutorFault, match="a step failed on the device: CUDA error: an illegal memory access"
            ),
            device_faults("a step"),
        ):
            stream.upload(stream.pinned(4), torch.zeros(4, dtype=torch.uint8), 4)


def test_arrays_lie_where_kernels_expect_them() -> None:
    memory = PackedMemory(
        FakeStream(),
        [Field("a", torch.int32, (3,)), Field("b", torch.float64, (5, 2)), Field("c", torch.int64, (1,))],
    )
    starts = [memory.tensor(name).data_ptr() - memory.device.data_ptr() for name in "abc"]
    assert starts == [0, ALIGNMENT, 2 * ALIGNMENT]
    assert memory.end_of("b", 2) == ALIGNMENT + 2 * 2 * 8
    host = FakeStream().pinned(memory.num_bytes)
    memory.array(host, "b")[:] = np.arange(10).reshape(5, 2)
    assert host.array[ALIGNMENT : ALIGNMENT + 80].view(np.float64).tolist() == list(range(10))
