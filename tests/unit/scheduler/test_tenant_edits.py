"""An edit of a tenant and what of it waits already: nothing new arrives in any of these."""

import itertools
from collections import Counter
from collections.abc import Mapping

import pytest

from scheduler.core.fair_queue import FairPolicy
from scheduler.core.fifo import FifoPolicy
from scheduler.core.outputs import Placed, Rejected
from scheduler.core.policy import QueuePolicy
from scheduler.core.request import Requeue, Terms
from scheduler.core.share_queue import FairRules
from scheduler.core.state import SchedulerCore
from services.domain.generation import Band, Limits, RequestClass
from services.domain.ids import GatewayId, RequestKey, TenantId
from tests.unit.scheduler.builders import GATEWAY, MODEL, acquire, core, hello, key, only, report

EITHER = pytest.mark.parametrize("policy", [FairPolicy, FifoPolicy])
WORKER = hello().worker


class Queue:
    """A core whose worker takes as many requests as it is told to."""

    def __init__(self, policy: QueuePolicy | None = None) -> None:
        self.core: SchedulerCore = core(policy=policy or FairPolicy(FairRules(quantum=0.0, window=1)))
        self.core.worker_connected(hello(max_sequences=1000, pages=100_000, max_step_tokens=100_000), 0.0)
        self._numbers = itertools.count(1)
        self._granted = 0

    def ask(self, tenant: str, count: int = 1, *, limits: Limits | None = None) -> list[RequestKey]:
        asked = [
            acquire(f"r{next(self._numbers)}", tenant=tenant, tokens=100, limits=limits) for _ in range(count)
        ]
        for one in asked:
            self.core.acquire(GATEWAY, one, float(next(self._numbers)))
        return [one.key for one in asked]

    def edit(self, weights: Mapping[str, float], *moved: Requeue, gateway: GatewayId = GATEWAY) -> None:
        terms = Terms({TenantId(tenant): weight for tenant, weight in weights.items()}, moved)
        self.core.edited(gateway, terms)

    def placed(self, count: int) -> list[Placed]:
        """Let the worker take `count` more requests; return them."""
        self._granted += count
        self.core.report(
            WORKER, report(granted=self._granted, seen=self._granted - count, startable=100_000), 1e3
        )
        return only(Placed, self.core.place(1e3))

    def tenants_placed(self, count: int) -> Counter[str]:
        return Counter(str(one.acquire.tenant) for one in self.placed(count))


def moved(keys: list[RequestKey], band: Band, kind: RequestClass = RequestClass.SHORT) -> Requeue:
    return Requeue(tuple(keys), band, kind)


@pytest.mark.parametrize(
    ("edit", "expected"), [({"x": 4.0}, {"x": 32, "y": 8}), ({}, {"x": 20, "y": 20})], ids=["edit", "none"]
)
def test_a_backlog_is_served_by_its_tenants_new_weight(
    edit: dict[str, float], expected: dict[str, int]
) -> None:
    queue = Queue()
    queue.ask("x", 100)
    queue.ask("y", 100)
    queue.edit(edit)
    shares = queue.tenants_placed(40)
    assert shares == {name: pytest.approx(count, abs=1) for name, count in expected.items()}


def test_what_waits_says_its_new_weight_and_so_does_its_tenant() -> None:
    queue = Queue()
    queue.ask("x", 2)
    queue.edit({"x": 4.0, "never seen": 9.0})
    assert [(row.tenant, row.weight) for row in queue.core.room.tenants] == [("x", 4.0)]
    assert {one.acquire.weight for one in queue.placed(2)} == {4.0}


def test_a_tenant_of_whom_all_is_served_already_is_measured_by_its_new_weight() -> None:
    over = []
    for weights in ({"x": 4.0}, {}):
        queue = Queue()
        queue.ask("x", 8)
        queue.ask("y", 8)
        queue.placed(16)
        queue.edit(weights)
        for served in range(0, 2000, 10):
            use = {"x": served, "y": served}
            queue.core.report(WORKER, report(granted=16, seen=16, output_tokens=use), 1e3)
        over.append(queue.core.room.policy.over_share(WORKER)[TenantId("y")])
    edited, control = over
    # It has half, of which it is due a fifth now.
    assert edited > 1000 > control


@EITHER
def test_a_backlog_that_rises_to_a_higher_band_goes_before_others_of_its_old_one(
    policy: type[QueuePolicy],
) -> None:
    queue = Queue(policy())
    queue.ask("y", 30)
    backlog = queue.ask("x", 10)
    queue.edit({"x": 1.0}, moved(backlog, Band.INTERACTIVE))
    risen = [one.acquire for one in queue.placed(10) if one.acquire.tenant == "x"]
    assert len(risen) >= 8, "all but what the lower band is owed by its floor"
    assert [one.key for one in risen] == backlog[: len(risen)]
    assert {one.band for one in risen} == {Band.INTERACTIVE}


@EITHER
def test_a_backlog_that_falls_to_a_lower_band_lets_others_go_first(policy: type[QueuePolicy]) -> None:
    queue = Queue(policy())
    backlog = queue.ask("x", 10)
    queue.ask("y", 10)
    queue.edit({"x": 1.0}, moved(backlog, Band.BATCH))
    assert queue.tenants_placed(10)["y"] >= 8, "all but what the lower band is owed by its floor"
    assert queue.core.room.sizes[Band.BATCH, RequestClass.SHORT, MODEL] >= 8


@EITHER
def test_a_backlog_may_become_of_the_other_class(policy: type[QueuePolicy]) -> None:
    queue = Queue(policy())
    backlog = queue.ask("x", 3)
    queue.edit({"x": 1.0}, moved(backlog, Band.STANDARD, RequestClass.LONG))
    assert queue.core.room.sizes == {(Band.STANDARD, RequestClass.LONG, MODEL): 3}
    assert queue.core.room.has_long(MODEL)
    assert [one.acquire.key for one in queue.placed(3)] == backlog
    assert queue.core.live.num_seats(WORKER, RequestClass.LONG) == 3
    assert not queue.core.room.has_long(MODEL)


@EITHER
def test_whoever_came_first_is_first_where_it_is_moved_to(policy: type[QueuePolicy]) -> None:
    queue = Queue(policy())
    first, second, third, fourth = queue.ask("x", 4)
    queue.edit({"x": 1.0}, moved([second, fourth], Band.INTERACTIVE))
    queue.edit({"x": 1.0}, moved([third, first], Band.INTERACTIVE))
    room = queue.core.room
    came = room.all()[0].arrived
    assert room.oldest() == {(Band.INTERACTIVE, RequestClass.SHORT, MODEL): came}
    assert room.tenants.waits_since(TenantId("x"), MODEL, Band.INTERACTIVE) == came
    assert [one.acquire.key for one in queue.placed(4)] == [first, second, third, fourth]


@EITHER
def test_only_what_waits_and_is_the_gateways_own_moves(policy: type[QueuePolicy]) -> None:
    queue = Queue(policy())
    gone, waits = queue.ask("x", 2)
    queue.placed(1)
    asked = [gone, waits, key("unknown"), RequestKey(waits.request_id, 2)]
    queue.edit({"x": 1.0}, moved(asked, Band.BATCH), gateway=GatewayId("gateway-1"))
    queue.edit({"x": 1.0}, moved([gone, key("unknown"), asked[-1]], Band.BATCH))
    assert queue.core.room.sizes == {(Band.STANDARD, RequestClass.SHORT, MODEL): 1}
    queue.edit({"x": 1.0}, moved(asked, Band.BATCH))
    assert queue.core.room.sizes == {(Band.BATCH, RequestClass.SHORT, MODEL): 1}


@EITHER
def test_a_moved_request_still_runs_out_of_time_once(policy: type[QueuePolicy]) -> None:
    queue = Queue(policy())
    (backlog,) = queue.ask("x", limits=Limits(queue_s=5.0))
    queue.edit({"x": 1.0}, moved([backlog], Band.BATCH))
    rejected = only(Rejected, queue.core.place(1e3))
    assert [one.acquire.key for one in rejected] == [backlog]
    assert len(queue.core.room) == queue.core.room.num_tokens == 0
