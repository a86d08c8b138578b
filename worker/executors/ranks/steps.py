"""The steps of a rank other than 0: as far ahead of its device as rank 0 is of its own.

Knows batches and one executor; knows nothing of sockets or of what is drawn.
"""

from collections import deque
from typing import Any

from worker.engine.batch import Batch
from worker.executors.base import Executor, OverlappingExecutor

_MOST = 2
"""Steps under way: rank 0 sends no third one before it has the results of the first."""
_REST_S = 1.0
"""Seconds without a further step after which this rank looks whether its own have failed."""


class Steps:
    """Runs steps in order; where the executor can, a step is queued while the one before it runs."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._overlapping = executor if isinstance(executor, OverlappingExecutor) else None
        self._under_way: deque[Any] = deque()

    @property
    def rest_s(self) -> float | None:
        """Seconds to wait for a further step before `finish`; None: as long as it takes."""
        return _REST_S if self._under_way else None

    def run(self, batch: Batch) -> None:
        """Run a step, or queue it.

        Raises:
            ExecutorFault: It failed, or one before it did.
        """
        if self._overlapping is None:
            self._executor.execute(batch)
            return
        if len(self._under_way) == _MOST:
            self._overlapping.collect(self._under_way.popleft())
        self._under_way.append(self._overlapping.launch(batch))

    def finish(self) -> None:
        """Wait for all steps under way: a device that failed would not be noticed otherwise.

        Raises:
            ExecutorFault: One failed.
        """
        while self._under_way and self._overlapping is not None:
            self._overlapping.collect(self._under_way.popleft())
