"""Cut each tenant's cap of KV pages into slices, one per worker, whose sum never exceeds the cap.

Pure. Knows caps, what workers say their tenants hold, and time as `now`; does not enforce anything: a worker
enforces its own slices. A slice that is cut counts in full until the worker had time to hear of it and holds
no more than the new one (shrink first, then grow elsewhere).

Worked number: cap 100, workers a and b with 50 each. a holds 40 (80 %) and asks, b holds 4. b keeps the
larger of half its fair share and 1.25 x 4 + 1, so 25; it is cut to 25 now, and after the settling time a gets
75. After a restart of the kvmanager the old slices of workers that have not said hello yet are not known: the
sum may exceed the cap for the second until they do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.domain.ids import TenantId, WorkerId

SETTLE_S = 4.0
"""Seconds after which a worker has heard of a smaller slice, or its stream is dead."""
GONE_HOLD_S = 30.0
"""Seconds that the slices of a worker out of reach still count: it may live on under them."""


@dataclass(slots=True)
class _Slice:
    """One tenant on one worker."""

    limit: int = 0
    """Pages pushed as the slice."""
    in_force: int = 0
    """Pages the worker may believe to have; at least `limit`."""
    cut_at: float = 0.0
    used: int = 0
    """Pages the worker said the tenant holds."""
    asked: bool = False


@dataclass(slots=True)
class _Worker:
    total_pages: int
    slices: dict[TenantId, _Slice] = field(default_factory=dict)
    gone_until: float | None = None
    """Set while it is out of reach."""


class SliceBook:
    """Slices of all capped tenants on all workers; tenants without a cap do not appear."""

    def __init__(
        self, caps: Mapping[TenantId, int], *, expect_workers: int = 1, settle_s: float = SETTLE_S
    ) -> None:
        """Hold `caps`; `expect_workers`: how many will come, for whom first slices leave something."""
        self._caps = dict(caps)
        self._expect_workers = expect_workers
        self._settle_s = settle_s
        self._workers: dict[WorkerId, _Worker] = {}
        self._joined_at = float("-inf")

    def add_worker(self, worker: WorkerId, total_pages: int, now: float, *, same_boot: bool) -> None:
        """Give a worker first slices: what is free, but for the equal shares of those still expected.

        Args:
            same_boot: It was here before and may still act on its old slices.
        """
        before = self._workers.pop(worker, None)
        entry = _Worker(total_pages)
        num_to_come = max(1, self._expect_workers - len(self._workers))
        for tenant in self._caps:
            one = _Slice()
            if before is not None and same_boot:
                old = before.slices[tenant]
                one = _Slice(old.limit, old.in_force, old.cut_at, old.used)
            one.limit = max(
                one.limit, min(total_pages, one.limit + -(-self._free(tenant, one) // num_to_come))
            )
            one.in_force = max(one.in_force, one.limit)
            entry.slices[tenant] = one
        self._workers[worker] = entry
        self._joined_at = now

    def lose_worker(self, worker: WorkerId, now: float) -> None:
        """Note that a worker is out of reach; what it had counts for `GONE_HOLD_S` more."""
        entry = self._workers.get(worker)
        if entry is not None:
            entry.gone_until = now + GONE_HOLD_S

    def report(self, worker: WorkerId, held: Mapping[TenantId, int], wants_more: frozenset[TenantId]) -> None:
        """Note what tenants hold on a worker, and who asked for more there."""
        entry = self._workers.get(worker)
        if entry is None:
            return
        for tenant, one in entry.slices.items():
            if tenant in held:
                one.used = held[tenant]
                one.asked = False
            if tenant in wants_more:
                one.asked = True

    def limits_of(self, worker: WorkerId) -> dict[TenantId, int]:
        """Return the slices of a known worker."""
        return {tenant: one.limit for tenant, one in self._workers[worker].slices.items()}

    def in_force(self, tenant: TenantId) -> int:
        """Return the sum of what all workers may believe to have; never above the tenant's cap."""
        return sum(entry.slices[tenant].in_force for entry in self._workers.values())

    def rebalance(self, now: float) -> set[WorkerId]:
        """Settle what was cut, cut and grow towards the targets; return the workers whose slices changed."""
        for worker in [
            w for w, e in self._workers.items() if e.gone_until is not None and now >= e.gone_until
        ]:
            del self._workers[worker]
        present = {w: e for w, e in self._workers.items() if e.gone_until is None}
        changed: set[WorkerId] = set()
        for tenant, cap in self._caps.items():
            slices = {worker: entry.slices[tenant] for worker, entry in present.items()}
            for one in slices.values():
                if one.in_force > one.limit and now - one.cut_at >= self._settle_s:
                    one.in_force = max(one.limit, min(one.in_force, one.used))
            changed |= self._move(tenant, self._targets(cap, present, slices), slices, now)
        return changed

    def _move(
        self, tenant: TenantId, targets: Mapping[WorkerId, int], slices: Mapping[WorkerId, _Slice], now: float
    ) -> set[WorkerId]:
        changed = set()
        settling = now - self._joined_at < self._settle_s
        for worker, one in sorted(slices.items(), key=lambda item: (item[1].limit, item[0])):
            target = targets[worker]
            if target < one.limit:
                one.limit, one.cut_at = target, now
                changed.add(worker)
            elif target > one.limit and (_is_asking(one) or not settling):
                grown = min(target, one.in_force + self._free(tenant))
                if grown > one.limit:
                    one.limit, one.asked = grown, False
                    one.in_force = max(one.in_force, grown)
                    changed.add(worker)
        return changed

    def _targets(
        self, cap: int, present: Mapping[WorkerId, _Worker], slices: Mapping[WorkerId, _Slice]
    ) -> dict[WorkerId, int]:
        """Return the slices to move towards; their sum may exceed the cap, moves never make it so."""
        if not present:
            return {}
        fair = cap // len(present)
        totals = {worker: entry.total_pages for worker, entry in present.items()}
        asking = [w for w, one in slices.items() if _is_asking(one) and one.limit < totals[w]]
        floors = {
            worker: min(totals[worker], fair // 2 if worker in asking else max(fair // 2, _comfortable(one)))
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

    def _free(self, tenant: TenantId, extra: _Slice | None = None) -> int:
        return self._caps[tenant] - self.in_force(tenant) - (0 if extra is None else extra.in_force)


def _is_asking(one: _Slice) -> bool:
    return one.asked or (one.used > 0 and one.used * 5 >= one.limit * 4)


def _comfortable(one: _Slice) -> int:
    """Pages that leave what is used below 80 %."""
    return one.used + one.used // 4 + 1
