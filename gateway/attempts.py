"""The attempts of one request to get a place and use it: asks, submits once it may, tries again, lets go.

Owns the place; whatever a request holds of scheduler or worker is here. Knows nothing of tokens, of what the
caller is told or of why a request ends.
"""

import dataclasses
import time
from collections.abc import Callable
from enum import StrEnum

from gateway.core.deadlines import Deadlines
from gateway.core.retry_budget import RetryBudget
from gateway.peers import Scheduler, Sink, WorkerHold, Workers
from gateway.plan import Plan
from services.domain.errors import Code, QueueFull, ServeError, WorkerLost
from services.domain.generation import FinishReason
from services.domain.ids import Epoch, RequestId, RequestKey, WorkerId
from services.rpc.gateway_values import EndReport, LastWord, Placement

MAX_ATTEMPTS = 3
"""A placement that came to nothing is tried at most twice again."""
MAX_LOST = 2
"""A request whose worker is lost has one further attempt: what brought down two workers gets no third."""


class Phase(StrEnum):
    """Where a request is; each has its gauge."""

    PREPARING = "preparing"
    WAITING = "waiting"
    PLACED = "placed"
    RUNNING = "running"


class Attempts:
    """Where one request stands between scheduler and worker.

    Args:
        mark: Told of each step, for the trace.
        sink: Hears of places and tokens.
    """

    def __init__(
        self,
        request_id: RequestId,
        *,
        arrived: float,
        deadlines: Deadlines,
        scheduler: Scheduler,
        workers: Workers,
        retries: RetryBudget,
        mark: Callable[[str], None],
        sink: Sink,
    ) -> None:
        self.number = 1
        self.phase = Phase.PREPARING
        self.placement: Placement | None = None
        """The last one."""
        self.asked_at = self.placed_at = arrived
        self._request_id = request_id
        self._deadlines = deadlines
        self._scheduler, self._workers, self._sink = scheduler, workers, sink
        self._retries = retries
        self._mark = mark
        self._plan: Plan | None = None
        self._may_submit = False
        self._unused: Placement | None = None
        """A placement that was neither submitted nor given back."""
        self._hold: WorkerHold | None = None
        self._owes_word = False
        """Whether the worker has still to confirm that it let go."""
        self._last_word: EndReport | None = None
        self._tell: LastWord | None = None
        self._avoid: tuple[tuple[WorkerId, Epoch], ...] = ()
        self._num_lost = 0

    def ask(self, plan: Plan) -> None:
        """Ask for a place, to be used once `allow` was called."""
        self._plan = plan
        self.asked_at = plan.acquisition.asked_at
        self._acquire()

    def allow(self) -> ServeError | None:
        """A place may be used from now on, also one that is there already. Errors as in `placed`."""
        self._may_submit = True
        return self._submit()

    def placed(self, placement: Placement) -> ServeError | None:
        """There is a place: submit if allowed. Return why it came to nothing, if it did."""
        self.phase, self.placement, self.placed_at = Phase.PLACED, placement, time.monotonic()
        self._deadlines.has_place = True
        self._mark("placed")
        self._unused = placement
        return self._submit()

    def refuse(self, placement: Placement) -> None:
        """Give back a placement that nobody wants any more."""
        self._scheduler.abandon(placement.key, placement.seq)

    def rejected(self) -> None:
        """The scheduler gives no place: there is nothing to let go."""
        self.phase = Phase.PREPARING

    def accepted(self) -> None:
        self.phase = Phase.RUNNING

    def ended(self) -> None:
        """The worker holds nothing more."""
        self._hold = None

    def lost(self) -> None:
        """The worker is gone; a placement that it did not accept is given back."""
        self._hold = None
        if self.phase is Phase.PLACED and self.placement is not None:
            self.refuse(self.placement)

    def again(self, error: ServeError) -> bool:
        """Try another place after this one came to nothing by `error`; False when there is no use.

        It is on another worker, or on a newer boot where only the placement was out of date (ABORTED).
        """
        self._hold = None
        self._num_lost += isinstance(error, WorkerLost)
        is_elsewhere = error.code is Code.UNAVAILABLE or isinstance(error, QueueFull)
        if not is_elsewhere and error.code is not Code.ABORTED:
            return False
        if self.number >= MAX_ATTEMPTS or self._num_lost >= MAX_LOST:
            return False
        if not self._retries.take():
            self._mark("no_retry_left")
            return False
        if is_elsewhere and self.placement is not None:
            self._avoid += ((self.placement.worker, self.placement.epoch),)
        self.number += 1
        self._mark("placed_again")
        self._acquire()
        return True

    def finish_choice(self, choice: int, reason: FinishReason) -> None:
        """Tell the worker that one choice has ended here."""
        if self._hold is not None:
            self._hold.finish_choice(choice, reason)

    def let_go(self) -> None:
        """Release whatever is held, from any state. Idempotent."""
        if self._hold is not None:
            self._owes_word = True
            self._hold.cancel(self._on_last_word)
            self._hold = None
        elif self._unused is not None:
            self.refuse(self._unused)
            self._unused = None
        elif self.phase is Phase.WAITING:
            self._scheduler.abandon(self._key)

    def when_let_go(self, tell: LastWord) -> None:
        """Give `tell` the worker's numbers once it has confirmed that it let go; now where it need not."""
        if self._owes_word:
            self._tell = tell
        else:
            tell(self._last_word)

    def _on_last_word(self, report: EndReport | None) -> None:
        self._owes_word, self._last_word = False, report
        if self._tell is not None:
            self._tell(report)

    @property
    def _key(self) -> RequestKey:
        return RequestKey(self._request_id, self.number)

    def _acquire(self) -> None:
        assert self._plan is not None
        self.phase = Phase.WAITING
        self._deadlines.has_place = False
        acquisition = dataclasses.replace(self._plan.acquisition, key=self._key, avoid=self._avoid)
        self._scheduler.acquire(acquisition, self._sink)

    def _submit(self) -> ServeError | None:
        placement = self._unused
        if placement is None or not self._may_submit:
            return None
        assert self._plan is not None
        self._unused = None
        left = self._deadlines.left(time.monotonic())
        submission = dataclasses.replace(self._plan.submission, band=placement.band, limits=left)
        try:
            self._hold = self._workers.submit(placement, submission, self._sink)
        except ServeError as error:
            self.refuse(placement)
            return error
        return None
