"""Tenants with a cap of KV pages: refused above it, held back while a request waits for its slice."""

from collections.abc import Iterable

from scheduler.core.outputs import Placed, Rejected
from scheduler.core.state import SchedulerCore
from services.domain.errors import QuotaExceeded
from services.domain.ids import TenantId, WorkerId
from tests.unit.scheduler.builders import GATEWAY, acquire, core, hello, key, only, report

SMALL = "small"
WORKERS = ("worker-0", "worker-1")


def fleet(names: Iterable[str] = WORKERS, **rules: float) -> SchedulerCore:
    scheduler = core(**rules)
    for name in names:
        scheduler.worker_connected(hello(name), 0.0)
        tell(scheduler, name)
    return scheduler


def tell(scheduler: SchedulerCore, worker: str, at_slice: Iterable[str] = (), **numbers: int) -> None:
    made = report(granted=100, at_slice=at_slice, **numbers)  # type: ignore[arg-type]
    scheduler.report(WorkerId(worker), made, 0.0)


def placed(scheduler: SchedulerCore) -> list[tuple[str, str]]:
    return [(one.acquire.key.request_id, one.worker) for one in only(Placed, scheduler.place(0.0))]


def test_what_exceeds_the_tenants_cap_is_refused_at_once_with_numbers_and_the_rest_is_placed() -> None:
    scheduler = fleet()
    scheduler.refusals.caps = {TenantId(SMALL): 6}
    outputs = scheduler.acquire(GATEWAY, acquire("large", tokens=100, output=20, tenant=SMALL), 0.0)
    (refused,) = only(Rejected, outputs)
    assert isinstance(refused.error, QuotaExceeded)
    assert refused.error.detail.quota == "tenant/kv_pages"
    assert refused.error.detail.metadata == {"what": "KV pages", "need": "8", "limit": "6"}
    scheduler.acquire(GATEWAY, acquire("fits", tokens=80, output=10, tenant=SMALL), 0.0)
    scheduler.acquire(GATEWAY, acquire("others", tokens=100, output=20), 0.0)
    assert len(placed(scheduler)) == 2


def test_the_cap_counts_in_pages_of_the_worker_that_needs_fewest() -> None:
    scheduler = core()
    scheduler.worker_connected(hello("worker-0", page_size=16), 0.0)
    scheduler.worker_connected(hello("worker-1", page_size=64), 0.0)
    scheduler.refusals.caps = {TenantId(SMALL): 2}
    assert not only(Rejected, scheduler.acquire(GATEWAY, acquire("a", tokens=100, tenant=SMALL), 0.0))
    (refused,) = only(Rejected, scheduler.acquire(GATEWAY, acquire("b", tokens=200, tenant=SMALL), 0.0))
    assert refused.error.detail.metadata["need"] == "4"


def test_nothing_more_is_placed_where_a_tenant_waits_for_its_slice() -> None:
    scheduler = fleet()
    tell(scheduler, "worker-0", at_slice=[SMALL])
    for number in range(3):
        scheduler.acquire(GATEWAY, acquire(f"r{number}", tenant=SMALL), 0.0)
    assert {worker for _, worker in placed(scheduler)} == {"worker-1"}


def test_a_tenant_that_waits_everywhere_holds_up_nobody_and_goes_on_in_its_turn() -> None:
    """More of its requests wait than are looked at in one decision, and than may be passed by."""
    scheduler = fleet(window=4, max_bypasses=2)
    for name in WORKERS:
        tell(scheduler, name, at_slice=[SMALL])
    for number in range(20):
        scheduler.acquire(GATEWAY, acquire(f"small-{number}", tenant=SMALL), 0.0)
    for number in range(6):
        scheduler.acquire(GATEWAY, acquire(f"other-{number}"), 0.0)
    assert [request for request, _ in placed(scheduler)] == [f"other-{number}" for number in range(6)]
    started = [key(f"other-{number}") for number in range(6)]
    tell(scheduler, "worker-0", seen=6, started=started)  # type: ignore[arg-type]
    first, *_ = placed(scheduler)
    assert first == ("small-0", "worker-0")
