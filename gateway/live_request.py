"""One live request: the meeting point of scheduler, worker and the caller's stream.

Links call it (`on_*`, never blocking); the use case takes events from it. It owns its time limits and its
attempts, and lets go of its place the moment it fails. Knows nothing of quotas, transports or credentials.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from gateway.attempts import Attempts, Phase
from gateway.core.choice import Gap
from gateway.core.deadlines import Deadlines
from gateway.core.events import Event, Queued, Started, StillWaiting
from gateway.core.prompt_echo import PromptEcho
from gateway.core.retry_budget import RetryBudget
from gateway.peers import Scheduler, Workers
from gateway.plan import Plan
from gateway.quota_hold import QuotaHold
from services.domain.errors import Code, ServeError, SlowReader
from services.domain.generation import FinishReason, Usage
from services.domain.ids import RequestId
from services.domain.tenant import Tenant
from services.rpc.gateway_values import EndReport, Placement, Tops


class LiveRequest:
    """State of one request from arrival to its end."""

    def __init__(
        self,
        request_id: RequestId,
        tenant: Tenant,
        *,
        arrived: float,
        deadlines: Deadlines,
        max_unread_tokens: int,
        scheduler: Scheduler,
        workers: Workers,
        retries: RetryBudget,
        on_slow: Callable[[], None],
        mark: Callable[[str], None],
    ) -> None:
        self.id = request_id
        self.tenant = tenant
        self.arrived = arrived
        self.deadlines = deadlines
        self.attempts = Attempts(
            request_id,
            arrived=arrived,
            deadlines=deadlines,
            scheduler=scheduler,
            workers=workers,
            retries=retries,
            mark=mark,
            sink=self,
        )
        self.plan: Plan | None = None
        self.report: EndReport | None = None
        self.error: ServeError | None = None
        self.cached_tokens = 0
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.waits: Queued | None = None
        """The last that was heard of its place in the queue."""
        self.has_started = False
        self.quota_hold: QuotaHold | None = None
        """What the quota may hold for it."""
        self._max_unread = max_unread_tokens
        self._on_slow, self._mark = on_slow, mark
        self._unread = 0
        self._is_waiting = False
        self._notices: list[Event] = []
        self._told_started = False
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        if self.plan is None:
            return Usage()
        return Usage(
            prompt_tokens=self.plan.acquisition.num_prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=sum(choice.num_tokens for choice in self.plan.choices),
        )

    @property
    def has_begun(self) -> bool:
        """Whether it has cost anything yet."""
        return self.has_started or self.first_token_at is not None

    @property
    def is_complete(self) -> bool:
        """Whether everything has been taken and the worker has said its last word."""
        return (
            self.report is not None
            and self.plan is not None
            and all(choice.finished is not None for choice in self.plan.choices)
        )

    def ask(self, plan: Plan) -> None:
        """Ask for a place, unless it has failed already; it is used once `allow` was called."""
        if self.error is None:
            self.plan = plan
            self.attempts.ask(plan)

    def allow(self) -> None:
        """What the request may cost is reserved: it may be given to a worker."""
        if self.error is None:
            self._retry(self.attempts.allow())

    async def wait(self) -> None:
        """Wait until there is something to take."""
        self._is_waiting = True
        await self._wake.wait()
        self._is_waiting = False
        self._wake.clear()

    def take(self) -> list[Event]:
        """Return what is new for the caller, in order; its failure is in `error`, after the last events."""
        self._unread = 0
        events, self._notices = self._notices, []
        if self.plan is None or isinstance(self.error, SlowReader):
            return events
        if not self._told_started and self.has_begun:
            self._told_started = True
            events.append(self._started())
        if self.plan.echo is None or self._is_past_echo(self.plan.echo, events):
            for choice in self.plan.choices:
                events += choice.take(self.attempts.finish_choice)
        if self.report is not None and self.error is None and not self.is_complete:
            self.fail(ServeError("the worker ended a request whose choices had not ended"))
        return events

    def fail(self, error: ServeError) -> None:
        """End it: the place is let go at once, the caller learns of it when it reads. Idempotent."""
        if self.error is None and not self.is_complete:
            self.error = error
            self.attempts.let_go()
            self._wake.set()

    def stop(self, reason: FinishReason, refusal: ServeError) -> None:
        """End it well at the token it has reached, or with `refusal` while no worker runs it. Idempotent."""
        if self.attempts.phase is not Phase.RUNNING or self.plan is None:
            self.fail(refusal)
            return
        for choice in self.plan.choices:
            if self.error is None and not choice.is_over:
                choice.end(reason)
                self.attempts.finish_choice(choice.index, reason)
        self._wake.set()

    def close(self) -> None:
        """Release timer and place, from any state. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.attempts.let_go()

    def _retry(self, error: ServeError | None) -> None:
        """Try another place if one came to nothing; fail where that is no use."""
        if error is not None and not self._goes_on(error):
            self.fail(error)

    def _goes_on(self, error: ServeError) -> bool:
        """Try another place, as long as the caller has been given nothing that could come twice."""
        if self.error is not None or self.plan is None or self.first_token_at is not None:
            return False
        return not any(choice.is_over for choice in self.plan.choices) and self.attempts.again(error)

    def on_queued(self, position: int, expected_wait_s: float | None) -> None:
        self.waits = Queued(self.id, position, expected_wait_s)
        self._notices = [notice for notice in self._notices if not isinstance(notice, Queued)]
        self._notices.append(self.waits)
        self._wake.set()

    def on_placed(self, placement: Placement) -> None:
        if self.error is not None or self.plan is None:
            self.attempts.refuse(placement)
        else:
            self._retry(self.attempts.placed(placement))

    def on_rejected(self, error: ServeError) -> None:
        self.attempts.rejected()
        self.fail(error)

    def on_accepted(self) -> None:
        self.attempts.accepted()

    def on_started(self, cached_tokens: int) -> None:
        if not self.has_started:
            self.has_started = True
            self.cached_tokens = cached_tokens
            self._wake.set()

    def on_preempted(self) -> None:
        self._mark("preempted")

    def on_prompt_scored(self, first_position: int, logprobs: Sequence[float], tops: Tops) -> None:
        if self.plan is not None and self.plan.echo is not None:
            try:
                self.plan.echo.arrive(first_position, logprobs, tops)
            except Gap as error:
                self.fail(ServeError(f"the worker's stream has a fault: {error}"))
            self._wake.set()

    def on_tokens(
        self,
        choice: int,
        first_position: int,
        token_ids: list[int],
        logprobs: list[float] | None,
        tops: Tops | None,
    ) -> None:
        assert self.plan is not None
        try:
            wanted = self.plan.choices[choice].arrive(first_position, token_ids, logprobs, tops)
        except (Gap, IndexError) as error:
            self.fail(ServeError(f"the worker's stream has a fault: {error}"))
            return
        self.last_token_at = now = time.monotonic()
        if self.first_token_at is None:
            self.first_token_at = now
            self.deadlines.has_first_token = True
        self._wake.set()
        self._unread += wanted
        # A caller's stream that waits here is not slow, however much comes at once.
        if self._unread > self._max_unread and not self._is_waiting:
            self.fail(SlowReader(f"{self._unread} tokens wait to be read, at most {self._max_unread} may"))
            self._on_slow()

    def on_choice_ended(self, choice: int, reason: FinishReason, output_tokens: int) -> None:
        assert self.plan is not None
        self.plan.choices[choice].end(reason)
        self._wake.set()

    def on_refused(self, error: ServeError) -> None:
        self.attempts.ended()
        self._retry(error)

    def on_ended(self, report: EndReport) -> None:
        self.attempts.ended()
        failure = report.failure
        if failure is not None:
            if failure.code is Code.UNAVAILABLE and self._goes_on(failure):
                return
            self.fail(failure)
        self.report = report
        self._wake.set()

    def on_lost(self, error: ServeError) -> None:
        if self.plan is not None and all(choice.is_over for choice in self.plan.choices):
            # Every choice has ended; only the worker's own numbers are missing.
            self.attempts.ended()
            self.report = EndReport()
            self._wake.set()
            return
        self.attempts.lost()
        self._retry(error)

    def _is_past_echo(self, echo: PromptEcho, events: list[Event]) -> bool:
        """Give the prompt back before anything else of the answer; say whether that is done."""
        if not echo.is_told and self._told_started and echo.is_complete:
            events.append(echo.take())
        return echo.is_told

    def _started(self) -> Started:
        assert self.plan is not None
        return Started(
            request_id=self.id,
            model=self.plan.model,
            model_revision=self.plan.revision,
            prompt_tokens=self.plan.acquisition.num_prompt_tokens,
            cached_tokens=self.cached_tokens,
            seed=self.plan.submission.sampling.seed,
            cut_tokens=self.plan.cut_tokens,
            degraded=self.plan.degraded,
        )

    def _arm(self) -> None:
        due = self.deadlines.next_due()
        if due is not None:
            delay_s = max(0.0, due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic()
        expired = self.deadlines.expired(now)
        if expired is not None:
            self.fail(expired)
            return
        if self.deadlines.beat(now):
            self._notices.append(StillWaiting())
            self._wake.set()
        self._arm()
