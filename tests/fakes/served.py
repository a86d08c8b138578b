"""Requests that are all there before the first step, served by a step loop to their ends.

Knows the loop and what it says; what computes is the test's to give, its memory allocated here.
"""

import queue
from collections import defaultdict
from collections.abc import Callable, Sequence

from services.domain.generation import FinishReason
from tests.fakes.engine_harness import rows_of
from worker.engine.commands import Submit
from worker.engine.config import EngineConfig
from worker.engine.outputs import ChoiceEnded, Ended, Refused, StepOutputs
from worker.engine.step_scheduler import StepScheduler
from worker.executors.base import Executor
from worker.step_loop import StepLoop

WAIT_S = 60
"""Seconds after which a test fails."""


class Served:
    """What requests got."""

    def __init__(self, executor: Executor, config: EngineConfig, commands: Sequence[object]) -> None:
        executor.allocate(config.num_pages)
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.logprobs: dict[int, list[float]] = defaultdict(list)
        self.reasons: dict[tuple[int, int], FinishReason] = {}
        self.ended: dict[int, Ended] = {}
        self.on_step: Callable[[StepOutputs], None] = lambda outputs: None
        self.scheduler = StepScheduler(config)
        self._left = sum(isinstance(command, Submit) for command in commands)
        self._end: queue.Queue[BaseException | None] = queue.Queue()
        self.loop = StepLoop(self.scheduler, executor, on_step=self._take, on_fault=self._end.put)
        for command in commands:
            self.loop.post(command)  # type: ignore[arg-type]

    def run(self) -> "Served":
        """Serve all requests."""
        self.loop.start()
        fault = self._end.get(timeout=WAIT_S)
        assert self.loop.stop(WAIT_S)
        if fault is not None:
            raise fault
        assert self.scheduler.pool.num_held == 0
        return self

    def _take(self, outputs: StepOutputs) -> None:
        self.scheduler.pool.check()
        for handle, choice, first, ids in rows_of(outputs.tokens):
            assert first == len(self.tokens[handle, choice]), "tokens come once and in order"
            self.tokens[handle, choice] += ids
        for event in outputs.events:
            if isinstance(event, ChoiceEnded):
                self.reasons[event.handle, event.choice] = event.reason
            assert not isinstance(event, Refused), event
            if isinstance(event, Ended):
                self.ended[event.handle] = event
        self.on_step(outputs)
        self._left -= sum(isinstance(event, Ended) for event in outputs.events)
        if not self._left:
            self._left = -1
            self._end.put(None)
