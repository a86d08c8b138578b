"""Who may wait: capacity, queue bounds and what to expect.

Knows arithmetic over what it is given; owns only the measured rate of placements.
"""

import math
from collections.abc import Callable, Collection

from scheduler.core.policy import QueuePolicy
from scheduler.core.request import Acquire
from scheduler.core.rules import Rules
from services.domain.capacity import Capacity, Fits, NeverFits, worst_case
from services.domain.errors import ErrorDetail, PromptTooLong, QueueFull, ServeError, over_cap

RATE_WINDOW_S = 10.0
"""Time constant of the placement rate."""

MAX_RETRY_S = 30.0

MOST_OF_FREE = 4
"""Times the free places of a queue that one tenant may take, where the policy knows tenants."""


class PlacementRate:
    """Placements per second of one model, as an exponentially fading average."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._since: float | None = None
        self._at = 0.0

    def placed(self, now: float) -> None:
        """Count one placement."""
        self._rate = self._faded(now) + 1.0 / RATE_WINDOW_S
        self._since = now if self._since is None else self._since
        self._at = now

    def expected_s(self, position: int, now: float) -> float | None:
        """Return how long `position` placements take; None while nothing is known.

        Worked number: 20 placements a second, position 40: 2 s.
        """
        if self._since is None or now - self._since < 1.0:
            return None
        # The average starts at zero; dividing by the weight gathered so far removes that bias.
        weight = 1.0 - math.exp(-(now - self._since) / RATE_WINDOW_S)
        rate = self._faded(now) / weight
        return position / rate if rate > 1e-3 else None

    def _faded(self, now: float) -> float:
        return self._rate * math.exp(-(now - self._at) / RATE_WINDOW_S)


def never_fits(
    acquire: Acquire, capacities: Collection[Capacity], cap: int | None = None
) -> ServeError | None:
    """Return the refusal of a request that no worker can finish even when empty, with numbers.

    Args:
        cap: Most pages that its tenant may hold over all workers; None is no cap.
    """
    closest: NeverFits | None = None
    least: int | None = None
    for capacity in capacities:
        fit = worst_case(acquire.num_prompt_tokens, acquire.max_output_tokens, acquire.num_choices, capacity)
        if isinstance(fit, Fits):
            least = fit.num_pages if least is None else min(least, fit.num_pages)
        elif closest is None or fit.limit > closest.limit:
            closest = fit
    if least is not None:
        return over_cap(least, cap) if cap is not None and least > cap else None
    if closest is None:
        return None
    numbers = {"what": closest.what, "need": str(closest.need), "limit": str(closest.limit)}
    error = PromptTooLong("prompt", f"request {closest}")
    error.detail = ErrorDetail(field="prompt", metadata=numbers)
    return error


def queue_full(
    acquire: Acquire, policy: QueuePolicy, rules: Rules, expected_wait_s: Callable[[], float | None]
) -> QueueFull | None:
    """Return the refusal of a request that finds the queue at its bound.

    A band counts itself and the bands before it, so a flood of batch work cannot shut out interactive work.
    One tenant may have at most `MOST_OF_FREE` times what is still free, so a flood of its requests leaves
    places for others. Worked number: of 10,000 places one tenant alone gets 8,000, ten that flood 976 each,
    and 244 stay free.
    Source: Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998.

    Args:
        expected_wait_s: Says how long the whole queue takes; asked only for a refusal.
    """
    waiting = policy.num_waiting(acquire.model, acquire.band)
    tokens = policy.num_tokens(acquire.model, acquire.band) + acquire.num_prompt_tokens - 1
    free, free_tokens = rules.max_waiting - waiting, rules.max_waiting_tokens - tokens
    own = own_tokens = 0
    if waiting >= MOST_OF_FREE * free or tokens >= MOST_OF_FREE * free_tokens:
        own, own_tokens = policy.waiting_of_tenant(acquire)
    whose = "wait"
    if free <= 0:
        what, now, limit = "requests", waiting, rules.max_waiting
    elif free_tokens <= 0:
        what, now, limit = "tokens", tokens, rules.max_waiting_tokens
    elif own >= MOST_OF_FREE * free:
        what, now, limit, whose = "requests", own, MOST_OF_FREE * free, "of this tenant wait"
    elif own_tokens >= MOST_OF_FREE * free_tokens:
        what, now, limit, whose = "tokens", own_tokens, MOST_OF_FREE * free_tokens, "of this tenant wait"
    else:
        return None
    # Half of the queue gone is a good time to come back.
    wait_s = expected_wait_s()
    retry_after_s = min(MAX_RETRY_S, max(1.0, (wait_s or 0.0) / 2))
    numbers = {"waiting": str(waiting), "waiting_tokens": str(tokens), "limit": str(limit)}
    return QueueFull(
        f"{now} {what} {whose} for {acquire.model} in this band and those before it, the limit is {limit}",
        ErrorDetail(
            quota=f"queue/{acquire.model}/{what}",
            retry_after_s=retry_after_s,
            metadata=numbers | place_in_queue(waiting + 1, wait_s),
        ),
    )


def place_in_queue(position: int | None, wait_s: float | None) -> dict[str, str]:
    """Return what a refusal tells of where a request stood, or would have stood, as far as that is known."""
    known = {"position": position, "expected_wait_ms": None if wait_s is None else round(wait_s * 1000)}
    return {name: str(number) for name, number in known.items() if number is not None}
