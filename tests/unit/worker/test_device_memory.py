"""A profile run: what it measures, what it leaves, and what it says where nothing is left."""

from collections.abc import Sequence

import numpy as np
import pytest

from services.chassis.fatal import FatalError
from worker.device_memory import DeviceUse, device_room, measure_use
from worker.devices import DeviceMemory
from worker.engine.batch import Batch, StepResult
from worker.executors.base import ExecutorFault, StepLimits
from worker.executors.sim import SimConfig, SimExecutor
from worker.largest_steps import largest_steps
from worker.memory import MIB, TooLittleMemory

LIMITS = StepLimits(max_sequences=4, max_step_tokens=64, max_context_tokens=40, page_size=16)
STEPS = largest_steps(LIMITS)
TOTAL = 20_000 * MIB


class Keeping(SimExecutor):
    """Takes device memory like an executor: pages, and for its steps what the largest needs."""

    def __init__(self, room_mib: int = 1 << 20) -> None:
        super().__init__(SimConfig(time_scale=0, page_bytes=3 * MIB))
        self.weights_mib, self.pages, self.step_mib, self.captures = 1000, 0, 0, False
        self._room_mib = room_mib

    def allocate(self, num_pages: int, *, captures: bool = True) -> None:
        super().allocate(num_pages)
        self.captures = captures
        self.pages = num_pages

    def execute(self, batch: Batch) -> StepResult:
        self.step_mib = max(self.step_mib, len(batch.ids))
        if self.step_mib > self._room_mib:
            raise ExecutorFault("a step failed on the device: out of memory")
        return super().execute(batch)

    def close(self) -> None:
        self.pages = 0

    @property
    def name(self) -> str:
        return "cuda:0"

    @property
    def label(self) -> str:
        return "Fake GPU (sm_90)"

    @property
    def uuid(self) -> None:
        return None

    @property
    def compiles(self) -> bool:
        return True

    def memory(self) -> DeviceMemory:
        used = self.weights_mib + 3 * self.pages + self.step_mib
        return DeviceMemory(18_000 * MIB - used * MIB, TOTAL)


def use(**fields: object) -> DeviceUse:
    values: dict[str, object] = {
        "label": "Fake GPU (sm_90)",
        "total_bytes": TOTAL,
        "free_bytes": 18_000 * MIB,
        "weight_bytes": 1000 * MIB,
        "step_bytes": 64 * MIB,
        "step_tokens": 64,
    }
    return DeviceUse(**(values | fields))  # type: ignore[arg-type]


def test_the_largest_steps_fill_every_limit() -> None:
    mixed, decode = STEPS
    assert len(mixed.ids) == mixed.query_start[-1] == 64
    assert np.diff(mixed.query_start).tolist() == [1, 1, 22, 40]
    assert len(mixed.out_rows) == len(mixed.sampling) == 64, "every row: 4 draw, 60 of 64 score"
    assert mixed.targets is not None
    assert (mixed.targets == -1).sum() == 4
    assert np.diff(decode.query_start).tolist() == [1] * 4
    for step in STEPS:
        assert step.context_len.tolist() == [40] * 4
        assert step.positions.max() == 39
        assert step.positions.min() >= 0
        assert step.page_table.shape == (4, 3)
        assert not step.page_table.any(), "one page is enough"


def test_what_is_measured_is_what_was_taken() -> None:
    device = Keeping()
    found = measure_use(device, device, STEPS, free_before=18_000 * MIB)
    assert found == use()
    assert device.pages == 0, "the page of the run is given back"
    assert not device.captures, "graphs of that page would be of no use"


def test_a_twentieth_is_kept_and_half_a_gibibyte_at_least() -> None:
    assert use().left_bytes == (18_000 - 1000 - 64 - 1000) * MIB
    assert use(total_bytes=8000 * MIB, free_bytes=7000 * MIB).reserve_bytes == 512 * MIB


def test_all_that_is_left_is_taken_unless_a_share_is_asked_for() -> None:
    room = device_room(use(), None)
    assert room.num_bytes == room.most_bytes == use().left_bytes
    assert room.arithmetic == (
        "(18,000 of 20,000 MiB free on Fake GPU (sm_90) - 1,000 weights - 64 largest step (64 tokens)"
        " - 1,000 reserve = 15,936 MiB)"
    )
    half = device_room(use(), 0.5)
    assert half.num_bytes == room.num_bytes // 2
    assert half.most_bytes == room.most_bytes
    assert half.arithmetic.startswith("0.5 of (")


def test_where_nothing_is_left_the_arithmetic_is_the_message() -> None:
    with pytest.raises(TooLittleMemory, match=r"17,000 weights .* = -64 MiB; take fewer bits") as raised:
        device_room(use(weight_bytes=17_000 * MIB), None)
    assert "\n" not in str(raised.value)


def test_steps_that_cannot_even_be_allocated_name_flags_and_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Keeping()

    def allocate(num_pages: int, *, captures: bool) -> None:
        raise ExecutorFault("allocating 1 pages ran out of device memory: CUDA out of memory")

    monkeypatch.setattr(device, "allocate", allocate)
    with pytest.raises(FatalError, match=r"64 tokens .*--max-step-tokens .*CUDA out of memory"):
        measure_use(device, device, STEPS, free_before=18_000 * MIB)


@pytest.mark.parametrize("steps", [STEPS, STEPS[:1]])
def test_a_step_that_does_not_fit_names_flags_and_cause(steps: Sequence[Batch]) -> None:
    device = Keeping(room_mib=63)
    with pytest.raises(FatalError, match=r"64 tokens .*--max-step-tokens .*out of memory"):
        measure_use(device, device, steps, free_before=18_000 * MIB)
    assert device.pages == 0
