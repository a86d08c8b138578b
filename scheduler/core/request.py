"""What gateways ask for, and what the scheduler knows about it while it waits.

Knows no prompt: only its length and the names of its blocks. Times are absolute, on the core's clock. What
each request brings is a named tuple, see `outputs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from services.domain.degradation import Step
from services.domain.generation import Band, Limits, RequestClass
from services.domain.ids import BlockHash, Epoch, GatewayId, RequestKey, TenantId, WorkerId
from services.domain.miss_reason import MissReason

NO_LIMITS = Limits()

WorkerBoot = tuple[WorkerId, Epoch]
"""One boot of one worker; a restarted worker is another one."""


class Acquire(NamedTuple):
    """A gateway asks for a place for one request."""

    key: RequestKey
    tenant: TenantId
    band: Band
    request_class: RequestClass
    model: str
    num_prompt_tokens: int
    max_output_tokens: int
    num_choices: int = 1
    block_hashes: tuple[BlockHash, ...] = ()
    limits: Limits = NO_LIMITS
    """Relative to the moment this message is handled."""
    waited_s: float = 0.0
    """How long it has waited already, before a reconnect or an earlier attempt."""
    avoid: frozenset[tuple[WorkerId, Epoch | None]] = frozenset()
    """Boots of workers that failed it; None: the one of now."""
    prompt_digest: bytes = b""
    """Names its tenant's prompt to this model; empty where that is not known."""
    own_salt: bool = False
    cache_opt_out: bool = False
    traceparent: str = ""
    weight: float = 1.0
    """The tenant's share relative to others'."""
    budget_step: Step = Step.NONE
    """How far the tenant's spent budgets alone let it degrade; the gateway acts on it."""


class Requeue(NamedTuple):
    """Requests that wait, and the band and class that they are of now."""

    keys: tuple[RequestKey, ...]
    band: Band
    request_class: RequestClass


class Terms(NamedTuple):
    """What edits of tenants changed for what they have here."""

    weights: Mapping[TenantId, float]
    requeued: tuple[Requeue, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptUse:
    """What a request's prompt took in the end, in tokens."""

    uncached: int
    cached: int


@dataclass(frozen=True, slots=True)
class TenantUse:
    """Tokens of a tenant's requests: prompts computed, prompts found in the cache, output."""

    uncached: int = 0
    cached: int = 0
    output: int = 0

    def plus(self, other: "TenantUse") -> "TenantUse":
        return TenantUse(
            self.uncached + other.uncached, self.cached + other.cached, self.output + other.output
        )

    def minus(self, other: "TenantUse") -> "TenantUse":
        return TenantUse(
            self.uncached - other.uncached, self.cached - other.cached, self.output - other.output
        )


class Match(NamedTuple):
    """Where the prompt's prefix is cached, as the kvmanager answered at `at`."""

    at: float
    tokens: Mapping[WorkerBoot, int]
    """Longest cached prefix per worker."""
    miss_reason: MissReason
    """Of the best match."""
    first_miss_token: int


def unknown_match(at: float) -> Match:
    """Return what is known when the kvmanager is down or late: no hit, and no reason."""
    return Match(at=at, tokens={}, miss_reason=MissReason.UNKNOWN, first_miss_token=0)


def uncacheable_match(acquire: Acquire, at: float) -> Match:
    """Return the match of a prompt that has no block or must not use the cache."""
    reason = MissReason.OPT_OUT if acquire.cache_opt_out else MissReason.NONE
    return Match(at=at, tokens={}, miss_reason=reason, first_miss_token=0)


@dataclass(slots=True, kw_only=True, eq=False)
class WaitingRequest:
    """One request in the queue. Only `SchedulerCore` and what it owns change it."""

    acquire: Acquire
    key: RequestKey = field(init=False)
    """The acquire's, which is asked for often."""
    gateway: GatewayId
    arrived: float
    """When it began to wait, earlier connections included: the order inside a band."""
    admitted: float
    """When this scheduler took it in."""
    deadline: float | None
    """The earliest of its limits; placed later it would be useless."""
    avoid: frozenset[WorkerBoot] = frozenset()
    match: Match | None = None
    """Changed by `matched` only."""
    longest_prefix: float = float("inf")
    """Cached tokens on the worker that has most; before anybody was asked the best is hoped."""
    match_asked: float | None = None
    bypassed: int = 0
    """Requests placed before it although it was in front of them."""
    kept_worker: WorkerBoot | None = None
    """Nobody else is placed there until this request is."""
    shown_position: int | None = None
    """Last position told to the gateway."""

    def __post_init__(self) -> None:
        self.key = self.acquire.key
        if self.match is not None:
            self.matched(self.match)

    def matched(self, match: Match) -> None:
        """Take in where its prefix is cached."""
        self.match = match
        most = max(match.tokens.values()) if match.tokens else 0
        self.longest_prefix = min(most, self.acquire.num_prompt_tokens - 1)

    def cached_tokens(self, worker: WorkerBoot, page_size: int) -> int:
        """Return the prompt tokens that `worker`, with pages of `page_size`, need not compute.

        Never the whole prompt: the last token is always recomputed, and a worker reuses whole pages: of a
        prompt of 144 cached tokens 128 with pages of 16 or 64, none of a prompt of 128 with pages of 128.
        """
        if self.match is None:
            return 0
        known = min(self.match.tokens.get(worker, 0), self.acquire.num_prompt_tokens - 1)
        return known // page_size * page_size


def earliest_limit(limits: Limits, now: float) -> float | None:
    """Return the absolute time of the first limit to run out, or None without limits."""
    given = [s for s in (limits.queue_s, limits.first_token_s, limits.total_s) if s is not None]
    return now + min(given) if given else None
