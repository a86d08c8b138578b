"""One live request: its sequences, its limits as points in time, and what it has used.

A request's sequences are admitted and aborted together. Knows nothing of the pool or of other requests.
"""

import math

from services.domain.errors import ErrorDetail, LimitExpired, ServeError
from services.domain.generation import Usage
from worker.engine.commands import Submit
from worker.engine.outputs import Ended
from worker.engine.sequence import Sequence, SequenceState


class Request:
    """State of one request from its Submit to its one end."""

    __slots__ = (
        "adapter",
        "arrival",
        "band",
        "block_hashes",
        "cache_opt_out",
        "cached_tokens",
        "computed_tokens",
        "first_token_at",
        "first_token_deadline",
        "handle",
        "held_pages",
        "key",
        "num_prompt_logprobs",
        "page_seconds",
        "page_size",
        "pages_marked_at",
        "peak_pages",
        "preemptions",
        "prompt_ids",
        "queue_deadline",
        "salt",
        "sampling",
        "sequences",
        "started_at",
        "stop",
        "submitted_at",
        "tenant",
        "total_deadline",
    )

    def __init__(self, submit: Submit, *, arrival: int, now: float, page_size: int) -> None:
        self.handle = submit.handle
        self.key = submit.key
        self.tenant = submit.tenant
        self.band = submit.band
        self.arrival = arrival
        """Order of arrival here."""
        self.page_size = page_size
        self.prompt_ids = submit.prompt_ids
        self.block_hashes = submit.block_hashes
        self.salt = submit.salt
        self.adapter = submit.adapter
        self.sampling = submit.sampling
        self.stop = submit.stop
        self.cache_opt_out = submit.cache_opt_out
        self.num_prompt_logprobs = submit.num_prompt_logprobs
        limits = submit.limits
        self.submitted_at = now
        self.queue_deadline = _deadline(now, limits.queue_s)
        # Of a further attempt the first token has been given, or its time is the caller's to cut down.
        has_output = any(submit.output_ids)
        self.first_token_deadline = math.inf if has_output else _deadline(now, limits.first_token_s)
        self.total_deadline = _deadline(now, limits.total_s)
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.cached_tokens = 0
        self.computed_tokens = 0
        self.preemptions = 0
        self.held_pages = 0
        self.peak_pages = 0
        self.page_seconds = 0.0
        self.pages_marked_at = now
        outputs = submit.output_ids or ((),) * submit.num_choices
        self.sequences = [Sequence(self, choice, ids) for choice, ids in enumerate(outputs)]

    @property
    def live_sequences(self) -> list[Sequence]:
        return [seq for seq in self.sequences if seq.state is not SequenceState.FINISHED]

    @property
    def usage(self) -> Usage:
        """Tokens over all choices; those of earlier attempts are in the outputs and count once."""
        return Usage(
            prompt_tokens=len(self.prompt_ids),
            cached_tokens=self.cached_tokens,
            output_tokens=sum(len(seq.output_ids) for seq in self.sequences),
        )

    @property
    def deadline(self) -> float:
        """When the nearest limit that still applies runs out."""
        deadline = self.total_deadline
        if self.first_token_at is None:
            deadline = min(deadline, self.first_token_deadline)
            if self.started_at is None:
                deadline = min(deadline, self.queue_deadline)
        return deadline

    def expiry(self) -> LimitExpired:
        """Name the limit behind `deadline`."""
        which = "total"
        if self.deadline < self.total_deadline:
            which = "queue" if self.deadline == self.queue_deadline else "first_token"
        detail = ErrorDetail(usage=self.usage, metadata={"limit": which})
        return LimitExpired(f"the {which} limit ran out", detail)

    def change_pages(self, delta: int, now: float) -> None:
        """Account for pages taken (> 0) or given back (< 0)."""
        self.page_seconds += self.held_pages * (now - self.pages_marked_at)
        self.pages_marked_at = now
        self.held_pages += delta
        self.peak_pages = max(self.peak_pages, self.held_pages)

    def ended(self, now: float, *, error: ServeError | None, cancelled: bool) -> Ended:
        """Sum up a request that holds nothing any more."""
        started = now if self.started_at is None else self.started_at
        first_token = now if self.first_token_at is None else max(self.first_token_at, started)
        return Ended(
            handle=self.handle,
            key=self.key,
            tenant=self.tenant,
            usage=self.usage,
            computed_tokens=self.computed_tokens,
            page_seconds=self.page_seconds,
            peak_pages=self.peak_pages,
            queue_s=started - self.submitted_at,
            prefill_s=first_token - started,
            decode_s=now - first_token,
            preemptions=self.preemptions,
            cancelled=cancelled,
            error=error,
        )


def _deadline(now: float, limit_s: float | None) -> float:
    return math.inf if limit_s is None else now + limit_s
