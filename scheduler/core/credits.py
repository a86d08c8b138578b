"""What one worker has said it takes, and what was placed on it since.

Knows one worker. The view is its last report plus the placements that the report had not seen; nothing is
counted up and down, so no lost message can leave a worker marked busy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any, NamedTuple

from scheduler.core.outputs import Placed
from scheduler.core.request import PromptUse, TenantUse
from services.domain.capacity import Capacity
from services.domain.generation import RequestClass
from services.domain.ids import Epoch, GatewayId, Namespace, RequestKey, TenantId, WorkerId

DECODE_TOKENS = 64
"""What a sequence that decodes (or will) costs others, in tokens of prefill: no request is free of cost."""

_BY_CLASS = max(RequestClass) + 1
"""Length of a list with a place for each class."""

_NONE: Mapping[Any, Any] = MappingProxyType({})

OUTSTANDING_GRACE_S = 5.0
"""A placement counts as not started at most this long after its submit limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHello:
    """A worker introduces itself; placements on it are numbered from 1 again."""

    worker: WorkerId
    epoch: Epoch
    address: str
    model: str
    revision: str
    namespace: Namespace
    capacity: Capacity
    max_step_tokens: int
    max_prefill_tokens: int
    """Of those, a prompt's while others decode: what has more to compute takes several steps."""
    live: tuple[RequestKey, ...] = ()
    draining: bool = False


class Report(NamedTuple):
    """How much a worker takes now."""

    seq: int
    placements_seen: int
    granted: int
    startable_pages: int
    free_pages: int
    reclaimable_pages: int
    waiting_tokens: int = 0
    running: int = 0
    waiting: int = 0
    started: tuple[RequestKey, ...] = ()
    ended: tuple[RequestKey, ...] = ()
    at_slice: frozenset[TenantId] = frozenset()
    """Tenants of whom a request waits there for its slice of KV pages: nothing more of theirs is placed."""
    tenant_use: Mapping[TenantId, TenantUse] = _NONE
    """Since the worker's boot, of tenants whose counts have changed; the first report has all."""
    prompts: Mapping[RequestKey, PromptUse] = _NONE
    """Of those that ended."""
    failures: Mapping[RequestKey, int] = _NONE
    """Canonical gRPC code of those of `ended` that had no good end; 1 is a cancel."""
    stuck_s: float = 0.0
    """Seconds since its last finished step while it has work; 0 when idle."""
    draining: bool = False


class Placement(NamedTuple):
    """A request given to a worker that has not said it started."""

    gateway: GatewayId
    kind: RequestClass
    seq: int
    cached_tokens: int
    """Those included that its worker computes for another."""
    uncached_tokens: int
    num_pages: int
    counts_until: float
    beyond_grants: bool
    """Others have to yield to it."""
    output: Placed
    """What the gateway was told, to be said again when it asks again."""


class WorkerCredits:
    """One boot of a worker as the scheduler sees it."""

    def __init__(self, hello: WorkerHello, now: float) -> None:
        self.hello = hello
        self.boot = hello.worker, hello.epoch
        self.report = Report(
            seq=0, placements_seen=0, granted=0, startable_pages=0, free_pages=0, reclaimable_pages=0
        )
        self.draining = hello.draining
        self.tripped = False
        """Its breaker lets nothing through now."""
        self.last_seen = now
        self.placed = 0
        """The highest placement number given out."""
        self.last_turn = 0
        """Number of the last placement on any worker that chose this one; breaks ties."""
        self.outstanding: dict[RequestKey, Placement] = {}
        self._tenant_use: dict[TenantId, TenantUse] = {}
        self.over_share: Mapping[TenantId, float] = {}
        """How far its tenants are over their shares, as it was told last; > 0 is over it."""
        self.ranks_version = 0
        self.ranks_due = now
        self._seen_tokens = [0] * _BY_CLASS
        self._unseen_tokens = [0] * _BY_CLASS
        self._unseen_pages = 0
        self._unseen = 0
        self._cached_tokens = 0

    @property
    def free_credits(self) -> int:
        """Placements that the worker would take now."""
        free = self.report.granted - self.placed
        return free if free > 0 and not (self.draining or self.tripped) else 0

    @property
    def takes_beyond_grants(self) -> bool:
        """Whether one may be placed to whom others have to yield: one at a time, until it has started."""
        stopped = self.draining or self.tripped
        return not (stopped or any(placement.beyond_grants for placement in self.outstanding.values()))

    @property
    def num_free_seats(self) -> int:
        return max(0, self.hello.capacity.max_sequences - self.report.running - self._unseen)

    def outstanding_tokens(self, kind: RequestClass) -> int:
        """Return the uncached tokens placed and not started in a class's window; of those that the worker has
        seen, its own count is a bound."""
        return min(self._seen_tokens[kind], self.report.waiting_tokens) + self._unseen_tokens[kind]

    @property
    def startable_pages(self) -> int:
        return max(0, self.report.startable_pages - self._unseen_pages)

    @property
    def idle(self) -> bool:
        """Whether the worker has nothing at all to do."""
        return self.report.running == 0 and self.report.waiting == 0 and self._unseen == 0

    @property
    def unstarted_tokens(self) -> int:
        """Uncached tokens placed and not started, in all windows."""
        return min(sum(self._seen_tokens), self.report.waiting_tokens) + sum(self._unseen_tokens)

    @property
    def load_tokens(self) -> int:
        """Work in front of a new request: prefill still to do, and the company in every step.

        Of those that wait the worker counts whole prompts: what they will find in its cache is no work.
        """
        sequences = self.report.running + self.report.waiting + self._unseen
        waiting = self.report.waiting_tokens - self._cached_tokens + sum(self._unseen_tokens)
        return max(waiting, self.unstarted_tokens) + DECODE_TOKENS * sequences

    def can_take(
        self, uncached_tokens: int, num_pages: int, kind: RequestClass, shared_tokens: int = 0
    ) -> bool:
        """Say whether a request may be placed now by the worker's grants."""
        if self.free_credits == 0 or not self.has_window(uncached_tokens, kind, shared_tokens):
            return False
        return self.idle or num_pages <= self.startable_pages

    def has_window(self, uncached_tokens: int, kind: RequestClass, shared_tokens: int = 0) -> bool:
        """Say whether so many tokens of a class may be placed and not started.

        The window is the larger of one request and one step's budget of uncached tokens, and each class has
        its own: a long prompt that has not started holds back no short one. What takes the worker several
        steps, of which it starts few at once, is in the long class's window whatever its tenant calls it.
        Worked number: budget 512, 300 outstanding: 200 more fit, 400 must wait; with nothing outstanding
        4,000 fit, and beside these 300 of the short class.

        Args:
            shared_tokens: Of those outstanding, what the request waits for, as if it had found it cached.
        """
        outstanding = max(0, self.outstanding_tokens(self._window(uncached_tokens, kind)) - shared_tokens)
        return not outstanding or outstanding + uncached_tokens <= self.hello.max_step_tokens

    def place(self, key: RequestKey, placement: Placement) -> None:
        """Count a placement made now; its number is `placed + 1`."""
        assert placement.seq == self.placed + 1, "placements are numbered without gaps"
        self.placed = placement.seq
        self.outstanding[key] = placement
        self._count_one(placement)

    def resolve(self, key: RequestKey) -> Placement | None:
        """Forget an outstanding placement: it started, ended, was given back or took too long."""
        placement = self.outstanding.pop(key, None)
        if placement is not None:
            self._count()
        return placement

    def overdue(self, now: float) -> list[RequestKey]:
        """Return the outstanding placements that no longer count; the first was placed first."""
        return [key for key, _ in takewhile(lambda one: one[1].counts_until <= now, self.outstanding.items())]

    def apply(self, report: Report, now: float) -> Mapping[TenantId, TenantUse]:
        """Take a report; an older one than the last changes nothing.

        Returns:
            What was done for each tenant since the last report; the first one is where counting begins.
        """
        self.last_seen = now
        if report.seq <= self.report.seq:
            return {}
        known, is_first, nothing = self._tenant_use, self.report.seq == 0, TenantUse()
        new = (
            {} if is_first else {t: use.minus(known.get(t, nothing)) for t, use in report.tenant_use.items()}
        )
        known.update(report.tenant_use)
        self.report = report
        self.draining = self.draining or report.draining
        for key in (*report.started, *report.ended):
            self.outstanding.pop(key, None)
        self._count()
        return new

    def _count(self) -> None:
        """Derive the sums from the table. It is short: at most the worker's window."""
        self._seen_tokens, self._unseen_tokens = [0] * _BY_CLASS, [0] * _BY_CLASS
        self._unseen_pages = self._unseen = self._cached_tokens = 0
        for placement in self.outstanding.values():
            self._count_one(placement)

    def _window(self, uncached_tokens: int, kind: RequestClass) -> RequestClass:
        return RequestClass.LONG if uncached_tokens > self.hello.max_prefill_tokens else kind

    def _count_one(self, placement: Placement) -> None:
        self._cached_tokens += placement.cached_tokens
        window = self._window(placement.uncached_tokens, placement.kind)
        if placement.seq <= self.report.placements_seen:
            self._seen_tokens[window] += placement.uncached_tokens
        else:
            self._unseen += 1
            self._unseen_tokens[window] += placement.uncached_tokens
            self._unseen_pages += placement.num_pages
