"""Chooses the worker of a request: the least predicted cost among those that take it now.

cost = load + uncached prefill, in tokens (see `WorkerCredits.load_tokens`); never zero, because the last
prompt token is always recomputed and every sequence in a step counts. Among equals the worker whose last
turn is longest ago wins, so equal workers take turns.

What a worker is computing for another counts as cached there, and is no load in front of who needs it too:
its wait takes no step from anybody, which computing it again elsewhere does.
Worked number: 1,000 tokens were just placed on an idle worker. The same prompt costs there 1,000 - 992 in
front + 64 for company + 8 of its own = 80, on another idle one 1,000; once thirteen wait there, 1,016.

Knows the request and the workers of its model; reads and changes no queue.
"""

from collections.abc import Callable, Collection, Container
from typing import NamedTuple

from scheduler.core.credits import WorkerCredits
from scheduler.core.in_flight import InFlight
from scheduler.core.request import WaitingRequest, WorkerBoot
from services.domain.block_hash import BLOCK_SIZE
from services.domain.capacity import Fits, pages_for, worst_case
from services.domain.ids import BlockHash, TenantId
from services.domain.miss_reason import MissReason

NOBODY: frozenset[TenantId] = frozenset()


class Choice(NamedTuple):
    """Where a request goes, and what that should cost."""

    worker: WorkerCredits
    cached_tokens: int
    shared_tokens: int
    """Those after them that the worker computes for another."""
    uncached_tokens: int
    num_pages: int
    """Pages for the uncached prompt and one per choice to write into."""


def can_ever_serve(request: WaitingRequest, worker: WorkerCredits) -> bool:
    """Say whether `worker` could run the request if it were empty."""
    acquire = request.acquire
    if worker.draining or worker.boot in request.avoid:
        return False
    fit = worst_case(
        acquire.num_prompt_tokens, acquire.max_output_tokens, acquire.num_choices, worker.hello.capacity
    )
    return isinstance(fit, Fits)


def can_be_here(request: WaitingRequest, worker: WorkerCredits) -> bool:
    """Say whether `worker` could run the request now, had it but room."""
    return request.acquire.tenant not in worker.report.at_slice and can_ever_serve(request, worker)


def price(request: WaitingRequest, worker: WorkerCredits, in_flight: InFlight) -> Choice:
    """Return what the request would take on `worker`."""
    acquire, page_size = request.acquire, worker.hello.capacity.page_size
    cached, shared = request.cached_tokens(worker.boot, page_size), 0
    if acquire.block_hashes:
        known = cached // BLOCK_SIZE
        num_blocks = in_flight.num_blocks(worker.hello.worker, acquire.block_hashes, known)
        if num_blocks > known:
            usable = min(num_blocks * BLOCK_SIZE, acquire.num_prompt_tokens - 1)
            shared = usable // page_size * page_size - cached
    uncached = acquire.num_prompt_tokens - cached - shared
    num_pages = pages_for(uncached, page_size) + acquire.num_choices
    return Choice(worker, cached, shared, uncached, num_pages)


def choose(
    request: WaitingRequest,
    workers: Collection[WorkerCredits],
    kept: Container[WorkerBoot],
    in_flight: InFlight,
) -> Choice | None:
    """Return the cheapest worker that takes the request now, or None.

    Args:
        kept: Workers kept free for requests in front of this one.
        in_flight: What workers compute for others.
    """
    acquire = request.acquire
    best: Choice | None = None
    best_cost: tuple[int, int, str] | None = None
    for worker in workers:
        if worker.free_credits == 0 or worker.boot in kept or acquire.tenant in worker.report.at_slice:
            continue
        choice = price(request, worker, in_flight)
        in_front = worker.load_tokens - min(choice.shared_tokens, worker.unstarted_tokens)
        cost = (in_front + choice.uncached_tokens, worker.last_turn, worker.hello.worker)
        if best_cost is not None and cost >= best_cost:
            continue
        if worker.can_take(
            choice.uncached_tokens, choice.num_pages, acquire.request_class, choice.shared_tokens
        ) and can_ever_serve(request, worker):
            best, best_cost = choice, cost
    return best


def worker_to_keep(
    request: WaitingRequest, workers: Collection[WorkerCredits], kept: Container[WorkerBoot]
) -> WorkerBoot | None:
    """Return the worker that should take nothing else until `request` fits: the same each time if it can."""
    possible = [w for w in workers if not w.tripped and w.boot not in kept and can_ever_serve(request, w)]
    if any(worker.boot == request.kept_worker for worker in possible):
        return request.kept_worker
    most = max(possible, key=lambda w: (w.startable_pages, -w.load_tokens, w.hello.worker), default=None)
    return most.boot if most is not None else None


def held_back(workers: Collection[WorkerCredits]) -> frozenset[TenantId]:
    """Return the tenants that wait for their slice on every worker: they pass nobody and hold up nobody."""
    held: frozenset[TenantId] | None = None
    for worker in workers:
        at_slice = worker.report.at_slice
        held = at_slice if held is None else held & at_slice
        if not held:
            return NOBODY
    return held or NOBODY


def miss_reason(
    request: WaitingRequest, choice: Choice, in_flight: Callable[[BlockHash], bool]
) -> tuple[MissReason, int]:
    """Return why the prompt is not wholly cached on the chosen worker, and from which token on.

    The kvmanager explains its best match; when another worker holds more than the chosen one, that is the
    reason instead. Of a block that it does not know, `in_flight` says whether somebody computes it.
    """
    match = request.match
    if match is None:
        return MissReason.UNKNOWN, 0
    here = match.tokens.get(choice.worker.boot, 0)
    if here < max(match.tokens.values(), default=0):
        return MissReason.ON_ANOTHER_WORKER, here
    hashes, first_miss = request.acquire.block_hashes, match.first_miss_token // BLOCK_SIZE
    is_unknown = match.miss_reason in (MissReason.NEVER_SEEN, MissReason.OWN_SALT)
    if is_unknown and first_miss < len(hashes) and in_flight(hashes[first_miss]):
        return MissReason.IN_FLIGHT, match.first_miss_token
    return match.miss_reason, match.first_miss_token
