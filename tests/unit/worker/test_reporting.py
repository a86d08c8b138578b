"""What the scheduler and the kvmanager are told of steps."""

import asyncio

from services.domain.errors import LimitExpired
from services.domain.ids import BlockHash
from services.domain.slices import NO_SLICES, SliceInForce, SlicesInForce
from services.rpc.worker_scheduler_link import TokensUsed
from tests.unit.worker.engine_stand_in import TENANT, HandSteps, Observed, ended, key, stats, submit
from worker.async_engine import AsyncEngine
from worker.engine.kv_events import RemovalReason, Removed, Stored
from worker.engine.outputs import Accepted, StepOutputs, TenantUse
from worker.gateway_step import handle_in
from worker.placements import PlacementBook
from worker.reporting import KvReport, LoadReport


class Bench:
    def __init__(self) -> None:
        self.engine = AsyncEngine(self._make, Observed())
        self.book = PlacementBook(1.0)
        self.load = LoadReport(self.engine, self.book)
        self.changes: list[bool] = []
        self.load.tell(self)

    def _make(self, *callbacks: object) -> HandSteps:
        self.steps = HandSteps(*callbacks)
        return self.steps

    def changed(self, *, soon: bool) -> None:
        self.changes.append(soon)

    async def step(self, **fields: object) -> None:
        self.steps.on_step(StepOutputs(**({"stats": stats()} | fields)))
        await asyncio.sleep(0)


async def started() -> Bench:
    bench = Bench()
    await bench.engine.start()
    bench.changes.clear()
    return bench


async def test_grants_count_from_the_hello_and_lost_placements_come_back() -> None:
    bench = await started()
    await bench.step(stats=stats(granted=14, taken=10))
    assert bench.load.begin_link() == ([], False)
    assert bench.load.obey(1, 0.5)
    assert bench.book.submit_within_s == 0.5
    assert bench.load.take().granted == 4
    bench.load.placed(3, [2])
    assert (bench.load.take().granted, bench.load.take().placements_seen) == (5, 0)
    bench.book.submitted(key(1), 1, 1, now=0.0)
    await bench.step(stats=stats(granted=15, taken=11), events=(Accepted(1, key(1)),))
    load = bench.load.take()
    assert (load.granted, load.placements_seen) == (6, 2)


async def test_a_submit_on_its_way_at_the_hello_is_no_grant_twice() -> None:
    bench = await started()
    bench.book.submitted(key(1), 1, 1, now=0.0)
    bench.load.begin_link()
    assert bench.load.take().granted == 3


async def test_starts_and_ends_are_reported_once_and_soon() -> None:
    bench = await started()
    error = LimitExpired("the total limit ran out")
    gone = (ended(1, 1), ended(2, 2, error))
    await bench.step(started=(key(1),), ended=gone, events=gone)
    assert bench.changes == [True]
    load = bench.load.take()
    assert load.started == (key(1),)
    assert [(one.key, one.code) for one in load.ended] == [(key(1), 0), (key(2), 4)]
    assert [(one.uncached_tokens, one.cached_tokens) for one in load.ended] == [(3, 0), (3, 0)]
    again = bench.load.take()
    assert (again.started, again.ended) == ((), ())


async def test_a_step_of_decoding_alone_is_not_urgent() -> None:
    bench = await started()
    await bench.step(stats=stats(running=1), tenant_use={TENANT: TenantUse(output_tokens=5)})
    await bench.step(stats=stats(running=1), tenant_use={TENANT: TenantUse(output_tokens=6)})
    assert bench.changes == [True, False]
    used = TokensUsed(uncached=0, cached=0, output=6)
    assert bench.load.take().tenant_use == {TENANT: used}
    assert bench.load.take().tenant_use == {}
    bench.load.begin_link()
    assert bench.load.take().tenant_use == {TENANT: used}


async def test_the_hello_names_what_is_live() -> None:
    bench = await started()
    session = bench.engine.open_session(lambda step: None)
    bench.engine.submit(submit(handle_in(session, 1), 1))
    bench.load.drain()
    assert bench.load.begin_link() == ([key(1)], True)


class Feed:
    def __init__(self) -> None:
        self.told: list[object] = []

    def removed(self, block: BlockHash, *, by_policy: bool) -> None:
        self.told.append(("idle" if by_policy else "removed", block))

    def stored(self, block: BlockHash) -> None:
        self.told.append(("stored", block))

    def flush_soon(self, tenant_pages: object) -> None:
        self.told.append(tenant_pages)

    def slices_changed(self, slices: SlicesInForce) -> None:
        self.told.append(slices)


async def test_kv_changes_are_passed_on_in_order_and_idle_steps_not() -> None:
    bench = await started()
    feed, report = Feed(), KvReport(bench.engine)
    report.tell(feed)
    a, b = BlockHash(b"a" * 16), BlockHash(b"b" * 16)
    await bench.step()
    await bench.step(
        kv_events=(Removed(a, TENANT, RemovalReason.SPACE), Stored(b, None, TENANT, 0)),
        tenant_pages={TENANT: 3},
    )
    await bench.step(kv_events=(Removed(b, TENANT, RemovalReason.IDLE),))
    assert feed.told == [("removed", a), ("stored", b), {TENANT: 3}, ("idle", b), {}]


def in_force(version: int, pages: int) -> SlicesInForce:
    one = SliceInForce(max_pages=pages, bound=pages, held=0)
    return SlicesInForce(version=version, tenants={TENANT: one})


async def test_slices_that_are_posted_and_not_applied_count_in_the_hello() -> None:
    """They act whatever happens to the stream that brought them."""
    bench = await started()
    feed, report = Feed(), KvReport(bench.engine)
    report.tell(feed)
    assert report.slices() == NO_SLICES
    report.set_slices(1, {TENANT: 50}, {TENANT: 100}, None)
    await bench.step(slices=in_force(1, 50))
    assert feed.told == [in_force(1, 50)]
    report.set_slices(2, {TENANT: 80}, {TENANT: 100}, None)
    report.set_slices(3, {TENANT: 20}, {TENANT: 100}, None)
    assert report.slices() == in_force(1, 80)
    assert bench.load.take().at_slice == ()
    waits = SliceInForce(max_pages=80, bound=80, held=0, needs=90)
    bench.changes.clear()
    await bench.step(slices=SlicesInForce(version=2, tenants={TENANT: waits}))
    assert (bench.changes, bench.load.take().at_slice) == ([True], (TENANT,))
    await bench.step(slices=in_force(3, 20))
    assert report.slices() == in_force(3, 20)
    assert [command.version for command in bench.steps.commands] == [1, 2, 3]
