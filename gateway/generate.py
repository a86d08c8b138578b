"""The use case: one generation from arrival to its one end, the same for every door.

validate -> tokenise -> reserve and ask for a place -> submit -> events -> settle. Whatever happens, all that
the request holds is released in `_close`, which does not wait. Knows nothing of gRPC, HTTP or how a caller
proved who it is.
"""

import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gateway.accounting import (
    Run,
    billed,
    complete_error,
    cost_of,
    ending_of,
    outcome_of,
    page_ms_of,
    receipt_of,
    with_last_word,
)
from gateway.budget_degradation import BudgetDegradation
from gateway.budget_warnings import BudgetWarnings
from gateway.core.auth import Authenticator
from gateway.core.deadlines import Deadlines, with_deadline
from gateway.core.ending import encode_ending
from gateway.core.events import Event
from gateway.core.lengths import class_of
from gateway.core.limit_status import LimitStatus
from gateway.core.reductions import headers_of
from gateway.core.request import Caller, GenerationRequest
from gateway.core.retry_budget import RetryBudget
from gateway.fitting import Fitted, fit
from gateway.live_request import LiveRequest
from gateway.live_table import LiveTable
from gateway.metrics import GatewayMetrics, tell_finished
from gateway.models import ModelBook
from gateway.peers import Scheduler, Workers
from gateway.plan import make_plan
from gateway.prompts import PromptEncoder, Salts
from gateway.quota_hold import QuotaHold
from gateway.settler import Settler
from gateway.stores.quota import QuotaStore, Reservation, Settlement
from services.chassis.telemetry import inject, start_span, trace_id
from services.domain.errors import DependencyDown, Draining, ErrorDetail, ServeError
from services.domain.generation import RequestClass
from services.domain.ids import RequestId, TenantId

TRACEPARENT_CHARS = 55
"""Of a W3C traceparent: version, trace, span, flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSettings:
    """Bounds of the use case."""

    max_unread_tokens: int = 2048
    """Tokens that may wait for a caller who does not read."""
    long_from_tokens: int = 2048
    """Prompts from this length on are of the long class."""
    retry_percent: float = 10.0
    """Further attempts per hundred requests; 0: none."""


@dataclass(kw_only=True)
class Generate:
    """Serves generations; holds what all of them share."""

    auth: Authenticator
    models: ModelBook
    encoder: PromptEncoder
    quota: QuotaStore
    settler: Settler
    scheduler: Scheduler
    workers: Workers
    retries: RetryBudget
    table: LiveTable
    metrics: GatewayMetrics
    budget_warnings: BudgetWarnings
    budget_degradation: BudgetDegradation
    settings: GenerateSettings = field(default_factory=GenerateSettings)
    is_draining: bool = False
    """Admit nothing more."""
    doubtful: set[TenantId] = field(default_factory=set)
    """Tenants whose last reservation was refused."""

    async def run(
        self,
        request: GenerationRequest,
        caller: Caller,
        *,
        request_id: RequestId | None = None,
        arrived: float | None = None,
        deadline_s: float | None = None,
        traceparent: str = "",
        on_slow: Callable[[], None] = lambda: None,
        on_headers: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> AsyncGenerator[Event, None]:
        """Serve one generation. Iterate inside `contextlib.aclosing`, so that leaving early ends it at once.

        Args:
            request_id: A `new_request_id` where the door must know it beforehand.
            arrived: Monotonic seconds at which the call reached this process; None is now.
            deadline_s: Seconds from `arrived` in which the caller wants it over.
            on_slow: Called when the caller does not keep up, while it may be stuck in writing.
            on_headers: Given what the answer tells of rates, budgets and degradation, before the first
                event; what the ladder refused is told once more.

        Yields:
            Events in the order of `gateway.core.events`; a receipt is the last of a good end.

        Raises:
            ServeError: Every other end, with the usage so far in its detail.
        """
        run = self._begin(
            request,
            caller,
            request_id or new_request_id(),
            arrived=time.monotonic() if arrived is None else arrived,
            deadline_s=deadline_s,
            traceparent=traceparent,
            on_slow=on_slow,
        )
        live = run.live
        try:
            self._admit(live)
            on_headers(await self._prepare(run, caller))
            while True:
                events = live.take()
                if live.first_token_at is not None and run.ttft_s is None:
                    self._note_first_token(run)
                for event in events:
                    yield event
                if live.error is not None:
                    raise live.error
                if live.is_complete:
                    break
                await live.wait()
            run.receipt = receipt_of(run)
            yield run.receipt
        except ServeError as error:
            run.error = complete_error(error, live)
            if run.refused_by is not None:
                on_headers(headers_of(run.degraded))
            raise
        except Exception as error:
            run.error = ServeError(f"a fault of the gateway ({type(error).__name__})")
            raise
        finally:
            self._close(run)

    def _begin(
        self,
        request: GenerationRequest,
        caller: Caller,
        request_id: RequestId,
        *,
        arrived: float,
        deadline_s: float | None,
        traceparent: str,
        on_slow: Callable[[], None],
    ) -> Run:
        tenant = self.auth.tenant_of(caller)
        span = start_span("gateway.generate", traceparent or None, request_id=request_id, tenant=tenant.id)
        live = LiveRequest(
            request_id,
            tenant,
            arrived=arrived,
            deadlines=Deadlines(with_deadline(request.limits, deadline_s), arrived),
            max_unread_tokens=self.settings.max_unread_tokens,
            scheduler=self.scheduler,
            workers=self.workers,
            retries=self.retries,
            on_slow=on_slow,
            mark=span.add_event,
        )
        # Of the caller's own text only a real trace id goes on to other processes.
        onward = inject(span) or (traceparent[:TRACEPARENT_CHARS] if trace_id(traceparent) else "")
        return Run(live=live, request=request, span=span, traceparent=onward)

    def _admit(self, live: LiveRequest) -> None:
        if self.is_draining:
            raise Draining("the gateway is shutting down", ErrorDetail(retry_after_s=1.0))
        self.table.add(live)
        self.retries.arrived()

    async def _prepare(self, run: Run, caller: Caller) -> Mapping[str, str]:
        """Do everything up to the submission, or until only the place is missing; return the headers."""
        request, tenant = run.request, run.live.tenant
        own = self.auth.salt_of(tenant.id, "")
        blocks = self.auth.salt_of(tenant.id, request.cache_salt) if request.cache_salt else own
        budget_step = await self.budget_degradation.step_of(caller, tenant)
        salts = Salts(blocks=blocks, tenant=own)
        fitted = await fit(request, tenant, salts, self.models, self.encoder, budget_step=budget_step)
        run.model = fitted.model.local.name
        num_tokens = len(fitted.prompt.ids)
        request_class = class_of(request.request_class, tenant, num_tokens, self.settings.long_from_tokens)
        plan = make_plan(
            request,
            fitted,
            request_id=run.live.id,
            tenant=tenant,
            salt=blocks,
            request_class=request_class,
            budget_step=budget_step,
            traceparent=run.traceparent,
        )
        # The quota is reserved while the scheduler looks for a place, and no work begins before it is. A
        # tenant that was refused last time is asked first, so that refusals cost the scheduler nothing.
        hold = self._quota_hold(run, caller, fitted, request_class)
        is_doubtful = tenant.id in self.doubtful
        if not is_doubtful:
            run.live.ask(plan)
        status = await self._reserve(run, hold)
        if is_doubtful:
            run.live.ask(plan)
        run.live.allow()
        return {**status.headers, **headers_of(fitted.degraded)}

    def _quota_hold(self, run: Run, caller: Caller, fitted: Fitted, request_class: RequestClass) -> QuotaHold:
        account_now = partial(
            self.auth.account_of, caller, model=run.request.model, request_class=request_class
        )
        reservation = Reservation(
            id=run.live.id,
            account=dataclasses.replace(account_now(), model=run.model),
            num_choices=fitted.options.num_choices,
            prompt_tokens=len(fitted.prompt.ids),
            output_tokens=fitted.options.num_choices * fitted.stop.max_output_tokens,
            idempotency_key=run.request.idempotency_key,
        )
        return QuotaHold(reservation=reservation, account_now=account_now)

    async def _reserve(self, run: Run, hold: QuotaHold) -> LimitStatus:
        live = run.live
        # Before the call: whatever becomes of it, the reservation is settled in the end.
        live.quota_hold = hold
        try:
            status = await self.quota.reserve(hold.reservation)
        except ServeError as error:
            self.doubtful.add(live.tenant.id)
            if not isinstance(error, DependencyDown):
                live.quota_hold = None
            raise
        hold.is_admitted = True
        self.doubtful.discard(live.tenant.id)
        run.span.add_event("reserved")
        self.budget_degradation.told(live.tenant, status)
        if status.warnings:
            account = hold.reservation.account
            self.budget_warnings.warned(account.organisation, account.tenant, status.warnings)
        return status

    def _note_first_token(self, run: Run) -> None:
        run.ttft_s = time.monotonic() - run.live.arrived
        self.metrics.first_token(run.model, run.ttft_s)
        run.span.add_event("first_token")

    def _close(self, run: Run) -> None:
        """Release everything the request holds: the one end of every request, from every state."""
        live = run.live
        if run.error is None:
            run.error = live.error  # Failed, and left before it was told.
        live.close()
        self.table.remove(live)
        usage = live.usage
        if live.quota_hold is not None:
            reservation, used = live.quota_hold.reservation, billed(run, usage)
            self.settler.settle(
                Settlement(
                    id=live.id,
                    account=reservation.account,
                    prompt_tokens=used.prompt_tokens,
                    output_tokens=used.output_tokens,
                    cached_tokens=used.cached_tokens,
                    page_ms=page_ms_of(run) if used.prompt_tokens else 0,
                    cost_nanos=cost_of(run, used) or 0,
                    ending=encode_ending(ending_of(run, usage)),
                    idempotency_key=reservation.idempotency_key,
                )
            )
        outcome = outcome_of(run, usage)
        self.metrics.finished(outcome)
        live.attempts.when_let_go(lambda report: tell_finished(with_last_word(outcome, report)))
        run.span.set_attribute("reason", outcome.reason)
        run.span.set_attribute("output_tokens", usage.output_tokens)
        run.span.end()


def new_request_id() -> RequestId:
    """Return an id that no request ever had."""
    return RequestId(f"req-{secrets.token_hex(12)}")
