"""What a request cost and how it ended: receipt, bill, error, log values, from one place.

Reads a finished run; changes nothing but the error that ends it.
"""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from gateway.core.ending import Ending, Failed
from gateway.core.events import Receipt
from gateway.core.request import GenerationRequest
from gateway.live_request import LiveRequest
from gateway.metrics import Outcome
from services.chassis.telemetry import trace_id
from services.domain.block_hash import BLOCK_SIZE
from services.domain.degradation import Degraded, degraded_of
from services.domain.errors import Code, Overloaded, ServeError
from services.domain.generation import Usage
from services.domain.miss_reason import MissReason
from services.rpc.gateway_values import EndReport, Placement


@dataclass(slots=True, kw_only=True)
class Run:
    """One call of `Generate.run`, from arrival to its end."""

    live: LiveRequest
    request: GenerationRequest
    span: Any
    traceparent: str
    model: str = "unknown"
    ttft_s: float | None = None
    receipt: Receipt | None = None
    error: ServeError | None = None

    @property
    def refused_by(self) -> Degraded | None:
        """Return the step of the ladder that refused it, if one did."""
        return degraded_of(self.error.detail.metadata) if isinstance(self.error, Overloaded) else None

    @property
    def degraded(self) -> tuple[Degraded, ...]:
        """Return every step that it felt."""
        felt = () if self.live.plan is None else self.live.plan.degraded
        return felt if self.refused_by is None else (*felt, self.refused_by)


_CANCELLED = ServeError("the caller left")
_CANCELLED.code, _CANCELLED.reason = Code.ABORTED, "CANCELLED"


def receipt_of(run: Run) -> Receipt:
    """Return the receipt of a request that ended well."""
    live = run.live
    report, placement = live.report, live.attempts.placement
    assert report is not None
    assert placement is not None
    miss_reason, first_miss_token = _miss_of(run, placement)
    return Receipt(
        request_id=live.id,
        usage=live.usage,
        queue_s=live.attempts.placed_at - live.attempts.asked_at + report.queue_s,
        prefill_s=report.prefill_s,
        decode_s=report.decode_s,
        ttft_s=run.ttft_s or 0.0,
        tpot_s=_tpot_s(live) or 0.0,
        preemptions=report.preemptions,
        page_seconds=page_ms_of(run) / 1000,
        worker=placement.worker,
        attempts=live.attempts.number,
        miss_reason=miss_reason,
        first_miss_token=first_miss_token,
        computed_tokens=report.computed_tokens,
        client_label=run.request.client_label,
        exact=True,
        degraded=run.degraded,
        cost_nanos=cost_of(run, live.usage),
    )


def complete_error(error: ServeError, live: LiveRequest) -> ServeError:
    """Give an error the usage so far and, if it is a fault of ours, what finds its line in the log."""
    metadata = error.detail.metadata
    if error.code is Code.INTERNAL:
        error.message = f"{error.message}, correlation id {live.id}"
        metadata = {**metadata, "correlation_id": live.id}
    error.detail = dataclasses.replace(error.detail, usage=live.usage, metadata=metadata)
    return error


def ending_of(run: Run, usage: Usage) -> Ending:
    """Return what is kept of the request for whoever asks later."""
    return run.receipt or Failed.of(run.live.id, run.error or _CANCELLED, usage)


def billed(run: Run, usage: Usage) -> Usage:
    """Return the usage a quota is charged: nothing for what never began or failed by our own fault."""
    ours = run.error is not None and run.error.code is Code.INTERNAL
    return usage if run.live.has_begun and not ours else Usage()


def page_ms_of(run: Run) -> int:
    """Return the page-milliseconds as the worker's last word has them; 0 where it came after the end here."""
    return 0 if run.live.report is None else round(run.live.report.page_seconds * 1000)


def cost_of(run: Run, used: Usage) -> int | None:
    """Return what the tenant is charged for `used`, in billionths of its unit; None without prices."""
    prices = run.live.tenant.prices
    if prices is None:
        return None
    return prices.cost(used, page_ms_of(run)) if used.prompt_tokens else 0


def _miss_of(run: Run, placement: Placement) -> tuple[MissReason, int]:
    """Return why the prompt was not wholly cached, and its first token that was not.

    The worker may have found more than the kvmanager knew of: blocks of a sibling, or published just now.
    """
    plan = run.live.plan
    assert plan is not None
    if plan.acquisition.cache_opt_out:
        return MissReason.OPT_OUT, 0
    cached_tokens = run.live.cached_tokens
    if cached_tokens <= placement.first_miss_token:
        return placement.miss_reason, placement.first_miss_token
    num_blocks = len(plan.submission.block_hashes)
    is_whole = cached_tokens >= num_blocks * BLOCK_SIZE
    return MissReason.NONE if is_whole else placement.miss_reason, cached_tokens


def _tpot_s(live: LiveRequest) -> float | None:
    """Return the mean time per output token after the first, over the longest choice."""
    if live.first_token_at is None or live.last_token_at is None or live.plan is None:
        return None
    longest = max(choice.num_tokens for choice in live.plan.choices)
    return (live.last_token_at - live.first_token_at) / (longest - 1) if longest > 1 else None


def outcome_of(run: Run, usage: Usage) -> Outcome:
    """Return the numbers for metrics and log."""
    live = run.live
    report = live.report or EndReport()
    reason = "ok" if run.receipt else run.error.reason if run.error else _CANCELLED.reason
    return Outcome(
        request_id=live.id,
        tenant=live.tenant.id,
        model=run.model,
        reason=reason,
        usage=usage,
        cost_nanos=cost_of(run, billed(run, usage)),
        duration_s=time.monotonic() - live.arrived,
        ttft_s=run.ttft_s,
        tpot_s=_tpot_s(live),
        queue_s=max(0.0, live.attempts.placed_at - live.attempts.asked_at) + report.queue_s,
        attempts=live.attempts.number,
        preemptions=None if live.report is None else report.preemptions,
        peak_pages=None if live.report is None else report.peak_pages,
        worker=live.attempts.placement.worker if live.attempts.placement else "",
        trace_id=trace_id(run.traceparent),
        degraded=run.degraded,
    )


def with_last_word(outcome: Outcome, report: EndReport | None) -> Outcome:
    """Add what a worker told of a request that it was told to let go of."""
    if report is None or outcome.peak_pages is not None:
        return outcome
    return dataclasses.replace(outcome, peak_pages=report.peak_pages, preemptions=report.preemptions)
