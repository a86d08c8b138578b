"""What each tenant has waiting and was given, as far as this scheduler has seen it."""

import pytest

from scheduler.core.fair_queue import FairPolicy
from scheduler.core.fifo import FifoPolicy
from scheduler.core.policy import QueuePolicy
from scheduler.core.request import TenantUse
from scheduler.core.tenant_table import TenantRow, TenantTable
from services.domain.generation import Band
from services.domain.ids import TenantId
from tests.unit.scheduler.builders import GATEWAY, MODEL, acquire, core, hello, key, report


def row(table: TenantTable, tenant: str) -> TenantRow:
    return next(one for one in table if one.tenant == tenant)


@pytest.mark.parametrize("policy", [FairPolicy, FifoPolicy])
def test_what_waits_is_counted_by_model_and_band_until_it_is_placed_or_leaves(
    policy: type[QueuePolicy],
) -> None:
    state = core(policy=policy())
    state.worker_connected(hello(), 0.0)
    for name, band in (("a", Band.STANDARD), ("b", Band.STANDARD), ("c", Band.BATCH)):
        state.acquire(GATEWAY, acquire(name, tenant="t", band=band, tokens=10, weight=2.0), 0.0)
    table, tenant = state.room.tenants, TenantId("t")
    assert table.num_waiting(tenant, MODEL, Band.STANDARD) == 2
    assert (row(table, "t").num_waiting, row(table, "t").waiting_tokens, row(table, "t").weight) == (3, 30, 2)
    state.abandon(key("b"), None)
    state.report(hello().worker, report(granted=1), 0.0)
    state.place(0.0)
    assert table.num_waiting(tenant, MODEL, Band.STANDARD) == 0
    assert (row(table, "t").waiting, row(table, "t").waiting_tokens) == (
        {(MODEL, Band.BATCH): {key("c"): 0.0}},
        10,
    )


def test_what_a_worker_did_before_it_was_known_is_not_counted() -> None:
    state = core()
    for name in ("worker-0", "worker-1"):
        state.worker_connected(hello(name), 0.0)
        state.report(hello(name).worker, report(granted=0, output_tokens={"t": 1000}), 0.0)
    assert list(state.room.tenants) == []
    state.report(hello().worker, report(granted=0, output_tokens={"t": 1007, "u": 5}), 0.0)
    state.report(hello("worker-1").worker, report(granted=0, output_tokens={"t": 1001}), 0.0)
    assert row(state.room.tenants, "t").use == TenantUse(output=8)
    assert row(state.room.tenants, "u").use == TenantUse(output=5)


def test_it_keeps_those_that_changed_last_and_never_forgets_who_waits() -> None:
    table = TenantTable(max_rows=2)
    table.came(acquire("a", tenant="waits"), 0.0)
    for name in ("old", "newer", "newest"):
        table.used(TenantId(name), TenantUse(output=1))
    assert {one.tenant for one in table} == {"waits", "newest"}
    table.left(acquire("a", tenant="waits"))
    table.used(TenantId("last"), TenantUse(output=1))
    assert {one.tenant for one in table} == {"newest", "last"}
