"""Cut each tenant's cap of KV pages into slices, one per worker: an escrow, never more in force than the cap.

Pure. Knows caps, what workers say they keep to, and time as `now`; enforces nothing: a worker enforces its
own slices. A slice that is cut counts in full until its worker says that it has applied the smaller one, and
then as the bound that the worker names; only what has come back so is given to another worker. A worker out
of reach counts for `GONE_HOLD_S`, after a restart of the kvmanager also each that was known and is not back.

Worked number: cap 100, workers a and b with 50 each. A request on a needs 60 pages, b holds 4. b is cut to
40; when b says "40 applied, bound 40", a gets 60. Had b's running sequences been able to reach 45, it would
say "bound 45", a would get 55 now and 60 when they have ended.

What is not covered: a worker that lives on, cut off from here alone, for longer than `GONE_HOLD_S`; one that
never had slices because no kvmanager was there when it started (it is bounded from its first ones on).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.domain.ids import TenantId, WorkerId
from services.domain.slices import SlicesInForce

JOIN_S = 4.0
"""Seconds in which workers that start together come; those that ask for nothing do not grow meanwhile."""
GONE_HOLD_S = 30.0
"""Seconds that the slices of a worker out of reach still count: it may live on under them."""


@dataclass(slots=True)
class _Slice:
    """One tenant on one worker."""

    limit: int = 0
    """Pages decided last; pushed with the next version."""
    bound: int = 0
    """Most pages under what the worker says it has applied."""
    pushed: list[tuple[int, int]] = field(default_factory=list)
    """Version and limit of what was pushed and not acknowledged, limits strictly falling: an earlier and
    smaller one adds nothing."""
    used: int = 0
    """Pages that the tenant holds, as last told."""
    needs: int = 0
    """Slice without which a request cannot finish that waits there; 0 when none does."""
    since: float = 0.0
    """Since when it waits."""

    @property
    def in_force(self) -> int:
        """Pages the worker may come to hold, whichever messages arrive."""
        return max(self.limit, self.bound, self.pushed[0][1] if self.pushed else 0)

    @property
    def is_asking(self) -> bool:
        """Something waits for more, or 80 % are in use."""
        return self.used + self.needs > self.limit if self.needs else 0 < self.limit * 4 <= self.used * 5

    @property
    def comfortable(self) -> int:
        """Pages that leave what is used below 80 %."""
        return self.used + self.used // 4 + 1


@dataclass(slots=True)
class _Worker:
    total_pages: int
    version: int
    """Of the slices it has applied."""
    slices: dict[TenantId, _Slice] = field(default_factory=dict)
    gone_until: float | None = None
    """Set while it is out of reach."""


class SliceBook:
    """Slices of all capped tenants on all workers; tenants without a cap do not appear."""

    def __init__(
        self, caps: Mapping[TenantId, int], *, expect_workers: int = 1, first_version: int = 1
    ) -> None:
        """Args:
        expect_workers: How many will come, for whom first slices leave something.
        first_version: Above every version of an earlier book that workers may still keep to.
        """
        self._caps = dict(caps)
        self._expect_workers = expect_workers
        self._version = first_version
        self._workers: dict[WorkerId, _Worker] = {}
        self._unheard: dict[WorkerId | None, float] = {}
        """Workers that may keep to slices not known here, and until when; None stands for any worker."""
        self._joined_at = float("-inf")

    def change_caps(self, caps: Mapping[TenantId, int]) -> None:
        """Hold tenants to other caps; every worker is to be pushed to afterwards.

        Limits never sum up to more than the new cap. What workers gave no answer on still counts, so that a
        cut gives nothing out before it was made. Whoever loses its cap may hold the whole pool again.
        """
        present = [entry for entry in self._workers.values() if entry.gone_until is None]
        for entry in self._workers.values():
            entry.slices = {
                tenant: entry.slices[tenant] if tenant in entry.slices else _Slice() for tenant in caps
            }
        for tenant, cap in caps.items():
            if tenant not in self._caps:
                for entry in present:
                    entry.slices[tenant].limit = min(entry.total_pages, cap // len(present))
            total = sum(entry.slices[tenant].limit for entry in self._workers.values())
            if total > cap:
                for entry in self._workers.values():
                    entry.slices[tenant].limit = entry.slices[tenant].limit * cap // total
        self._caps = dict(caps)

    def expect_back(self, worker: WorkerId | None, now: float) -> None:
        """Give nothing out until this worker of an earlier time has come back or is surely gone.

        Args:
            worker: None when it is not known which there were.
        """
        self._unheard[worker] = now + GONE_HOLD_S

    def add_worker(self, worker: WorkerId, total_pages: int, said: SlicesInForce, now: float) -> None:
        """Take in a worker, and give a new one its part of what is free: an equal share with those expected.

        Its hello is the whole truth: what it has read on an earlier stream is in it, what it has not read of
        that stream is lost, and another boot holds nothing of the one before.
        """
        self._workers.pop(worker, None)
        self._unheard.pop(worker, None)
        entry = _Worker(total_pages, said.version)
        num_to_come = max(1, self._expect_workers - len(self._workers))
        for tenant in self._caps:
            one = entry.slices[tenant] = _Slice()
            told = said.tenants.get(tenant)
            if told is not None:
                one.limit = told.max_pages
            else:
                one.limit = min(total_pages, -(-self._free(tenant) // num_to_come))
        self._take(entry, said, now)
        self._workers[worker] = entry
        self._joined_at = now

    def lose_worker(self, worker: WorkerId, now: float) -> None:
        """Note that a worker is out of reach; what it had counts for `GONE_HOLD_S` more."""
        entry = self._workers.get(worker)
        if entry is not None and entry.gone_until is None:
            entry.gone_until = now + GONE_HOLD_S

    def push(self, worker: WorkerId) -> tuple[int, dict[TenantId, int]]:
        """Return the next version and a known worker's slices: from now on it may have applied them."""
        self._version += 1
        slices = self._workers[worker].slices
        for one in slices.values():
            while one.pushed and one.pushed[-1][1] <= one.limit:
                one.pushed.pop()
            one.pushed.append((self._version, one.limit))
        return self._version, {tenant: one.limit for tenant, one in slices.items()}

    def applied(self, worker: WorkerId, said: SlicesInForce, now: float) -> None:
        """Take a worker's word for what it keeps to and needs; an older word changes nothing."""
        entry = self._workers.get(worker)
        if entry is not None and said.version >= entry.version:
            entry.version = said.version
            self._take(entry, said, now)

    def report(self, worker: WorkerId, held: Mapping[TenantId, int]) -> None:
        """Note what tenants hold on a worker."""
        if worker in self._workers:
            slices = self._workers[worker].slices
            for tenant in held.keys() & slices.keys():
                slices[tenant].used = held[tenant]

    def in_force(self, tenant: TenantId) -> int:
        """Return the sum of what all workers may come to hold; never above the tenant's cap."""
        return sum(entry.slices[tenant].in_force for entry in self._workers.values())

    def rebalance(self, now: float) -> set[WorkerId]:
        """Cut and grow towards the targets; return the workers to push to."""
        self._workers = {
            worker: entry
            for worker, entry in self._workers.items()
            if entry.gone_until is None or now < entry.gone_until
        }
        self._unheard = {worker: until for worker, until in self._unheard.items() if now < until}
        present = {w: e for w, e in self._workers.items() if e.gone_until is None}
        changed: set[WorkerId] = set()
        for tenant, cap in self._caps.items():
            slices = {worker: entry.slices[tenant] for worker, entry in present.items()}
            totals = {worker: min(cap, entry.total_pages) for worker, entry in present.items()}
            changed |= self._move(tenant, _targets(cap, totals, slices), slices, now)
        return changed

    def _move(
        self, tenant: TenantId, targets: Mapping[WorkerId, int], slices: Mapping[WorkerId, _Slice], now: float
    ) -> set[WorkerId]:
        changed = set()
        joining = now - self._joined_at < JOIN_S
        # Whoever waits longest comes first, then the smallest slices.
        for worker, one in sorted(
            slices.items(),
            key=lambda item: (
                not item[1].needs,
                item[1].since if item[1].needs else 0.0,
                item[1].limit,
                item[0],
            ),
        ):
            target = targets[worker]
            if target > one.limit and (one.is_asking or not joining):
                target = min(target, max(one.limit, one.in_force + self._free(tenant)))
            elif target > one.limit:
                target = one.limit
            if target != one.limit:
                one.limit = target
                changed.add(worker)
        return changed

    def _free(self, tenant: TenantId) -> int:
        return 0 if self._unheard else max(0, self._caps[tenant] - self.in_force(tenant))

    @staticmethod
    def _take(entry: _Worker, said: SlicesInForce, now: float) -> None:
        for tenant, one in entry.slices.items():
            one.pushed = [push for push in one.pushed if push[0] > said.version]
            told = said.tenants.get(tenant)
            if told is None:
                # Never given a slice of this tenant: what it holds is known with its first word on one.
                one.bound = one.needs = 0
                continue
            one.bound, one.used = max(told.bound, told.max_pages), told.held
            one.needs, one.since = min(told.needs, entry.total_pages), now - told.waited_s


def _targets(
    cap: int, totals: Mapping[WorkerId, int], slices: Mapping[WorkerId, _Slice]
) -> dict[WorkerId, int]:
    """Return the slices to move towards; moves never make their sum exceed the cap.

    First come the requests that cannot finish otherwise, whoever waits longest first, so none waits for ever.
    The rest goes to where it is wished for.
    """
    wished = _wished(cap, totals, slices)
    waiting = sorted((one.since, worker) for worker, one in slices.items() if one.needs)
    if not waiting:
        return wished
    left, sure = cap, dict.fromkeys(slices, 0)
    for _, worker in waiting:
        needs = slices[worker].needs
        if needs <= left:
            sure[worker] = needs
            left -= needs
    more = {worker: max(0, wished[worker] - sure[worker]) for worker in slices}
    num_more = sum(more.values())
    if num_more > left:
        more = {worker: pages * left // num_more for worker, pages in more.items()}
    return {worker: sure[worker] + more[worker] for worker in slices}


def _wished(
    cap: int, totals: Mapping[WorkerId, int], slices: Mapping[WorkerId, _Slice]
) -> dict[WorkerId, int]:
    """Return where the pages would be used: those that ask share what the others can spare."""
    if not slices:
        return {}
    fair = cap // len(slices)
    asking = [worker for worker, one in slices.items() if one.is_asking and one.limit < totals[worker]]
    floors = {
        worker: min(totals[worker], fair // 2 if worker in asking else max(fair // 2, one.comfortable))
        for worker, one in slices.items()
    }
    if asking:
        share = max(0, cap - sum(floors.values())) // len(asking)
        return {
            worker: min(totals[worker], floor + (share if worker in asking else 0))
            for worker, floor in floors.items()
        }
    if all(one.limit >= floors[worker] for worker, one in slices.items()):
        return {worker: max(one.limit, min(fair, totals[worker])) for worker, one in slices.items()}
    return {worker: min(totals[worker], max(fair, floors[worker])) for worker in slices}
