"""A step loop moved by hand, and outputs as it would give them."""

from collections.abc import Callable
from typing import Any

from services.domain.errors import ServeError
from services.domain.generation import Band, Limits, SamplingParams, StopParams, Usage
from services.domain.ids import RequestId, RequestKey, TenantId
from worker.async_engine import LiveRequest
from worker.engine.commands import Command, Submit
from worker.engine.outputs import Ended, Refused, StepOutputs, StepStats

TENANT = TenantId("local")


class HandSteps:
    """Keeps what is posted; the test says what each step gives."""

    def __init__(
        self, on_step: Callable[[StepOutputs], None], on_fault: Callable[[BaseException], None]
    ) -> None:
        self.on_step, self.on_fault = on_step, on_fault
        self.commands: list[Command] = []
        self.stuck = 0.0

    def start(self) -> None:
        self.on_step(StepOutputs(stats=stats(granted=4, taken=0)))

    def post(self, command: Command) -> None:
        self.commands.append(command)

    def stop(self, timeout_s: float | None = None) -> bool:
        return True

    def stuck_s(self) -> float:
        return self.stuck


class Observed:
    """Keeps what the engine tells of requests."""

    def __init__(self) -> None:
        self.told: list[tuple[str, RequestKey]] = []

    def submitted(self, request: LiveRequest, num_prompt_tokens: int, traceparent: str) -> None:
        self.told.append(("submitted", request.key))

    def preempted(self, request: LiveRequest) -> None:
        self.told.append(("preempted", request.key))

    def ended(self, request: LiveRequest, end: Ended | Refused) -> None:
        self.told.append(("ended", request.key))


def key(number: int, attempt: int = 1) -> RequestKey:
    return RequestKey(RequestId(f"r{number}"), attempt)


def submit(handle: int, number: int) -> Submit:
    return Submit(
        handle=handle,
        key=key(number),
        tenant=TENANT,
        band=Band.STANDARD,
        prompt_ids=(1, 2, 3),
        sampling=SamplingParams(),
        stop=StopParams(max_output_tokens=4),
        limits=Limits(),
    )


def ended(handle: int, number: int, error: ServeError | None = None) -> Ended:
    return Ended(
        handle=handle,
        key=key(number),
        tenant=TENANT,
        usage=Usage(prompt_tokens=3, output_tokens=4),
        computed_tokens=6,
        page_seconds=1.0,
        peak_pages=1,
        queue_s=0.1,
        prefill_s=0.2,
        decode_s=0.3,
        preemptions=0,
        error=error,
    )


def stats(**fields: Any) -> StepStats:
    values: dict[str, Any] = {
        "step": 1, "step_s": 0.01, "num_rows": 0, "num_prefill_tokens": 0, "num_decode_tokens": 0,
        "waiting": 0, "running": 0, "states": {}, "live_requests": 0, "waiting_tokens": 0,
        "oldest_waiting_s": 0.0, "free_pages": 8, "cached_pages": 0, "held_pages": 0, "preemptions": 0,
        "allocation_failures": 0, "transitions": {}, "prefix_tokens": {}, "unknown_cancels": 0,
        "granted": 4, "taken": 0, "startable_pages": 8, "draining": False,
    }  # fmt: skip
    return StepStats(**(values | fields))
