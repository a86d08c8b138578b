"""Refusals of a quota store as callers see them: scope, limit, what is used of it, and when to come back.

Makes values; decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.limit_status import LimitStatus
from gateway.stores.quota import Reservation
from services.domain.errors import DuplicateKey, ErrorDetail, QuotaExceeded
from services.domain.limits import Scope


@dataclass(frozen=True, slots=True)
class Limit:
    """How one limit is called and explained."""

    name: str
    need: Callable[[Reservation], int]
    text: str


LIMITS = {
    "concurrency": Limit("concurrency", lambda r: r.num_choices, "concurrent sequences"),
    "requests": Limit("requests_per_minute", lambda _: 1, "requests a minute"),
    "tokens": Limit("tokens_per_minute", lambda r: r.num_tokens, "tokens a minute"),
    "prompt": Limit("prompt_tokens_per_minute", lambda r: r.prompt_tokens, "prompt tokens a minute"),
    "output": Limit("output_tokens_per_minute", lambda r: r.output_tokens, "output tokens a minute"),
    "day": Limit("daily_budget", lambda r: r.num_tokens, "tokens a day"),
    "month": Limit("monthly_budget", lambda r: r.num_tokens, "tokens a month"),
}
"""By the name that the stores use, in the order in which they compare."""


def refused(
    reservation: Reservation,
    scope: Scope,
    which: str,
    *,
    limit: int,
    used: int,
    wait_s: float | None,
    status: LimitStatus,
) -> QuotaExceeded:
    """Say which limit of which scope does not cover a request's worst case.

    Args:
        which: A key of `LIMITS`.
        limit: Most at once: of a rate its burst.
        used: Taken of it now.
        wait_s: When as much may be there; None: never.
        status: Of the account now.
    """
    kind, left = LIMITS[which], max(0, limit - used)
    need = kind.need(reservation)
    wait = "which is more than it allows at once" if wait_s is None else f"try again in {wait_s:.1f} s"
    numbers = {"need": need, "used": used, "left": left, "limit": limit}
    return QuotaExceeded(
        f"{scope.name}: {used} of {limit} {kind.text} are in use, {need} more wanted; {wait}",
        ErrorDetail(
            quota=f"{scope.name}/{kind.name}",
            retry_after_s=wait_s,
            metadata={"scope": scope.name} | {name: str(number) for name, number in numbers.items()},
            rate_limits=status.headers,
        ),
    )


def duplicate(original: str) -> DuplicateKey:
    """Say which request an idempotency key belongs to."""
    return DuplicateKey(
        f"the idempotency key was used by request {original} within the last 10 minutes",
        ErrorDetail(metadata={"request_id": original}),
    )
