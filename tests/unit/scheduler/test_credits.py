from scheduler.core.credits import OUTSTANDING_GRACE_S, WorkerCredits
from scheduler.core.fifo import FifoPolicy
from scheduler.core.outputs import Placed
from scheduler.core.rules import Rules
from scheduler.core.state import SchedulerCore
from services.domain.generation import RequestClass
from services.domain.ids import WorkerId
from tests.unit.scheduler.builders import GATEWAY, acquire, hello, key, report

WORKER = WorkerId("worker-0")
RULES = Rules(submit_within_s=1.0)


def placing(granted: int) -> tuple[SchedulerCore, WorkerCredits]:
    core = SchedulerCore(RULES, FifoPolicy(), 0.0)
    core.worker_connected(hello(max_step_tokens=4096), 0.0)
    core.report(WORKER, report(granted=granted), 0.0)
    return core, core.fleet.workers[WORKER]


def place(core: SchedulerCore, name: str, tokens: int, kind: RequestClass, now: float = 0.0) -> None:
    core.acquire(GATEWAY, acquire(name, tokens=tokens, kind=kind), now)
    assert any(isinstance(output, Placed) for output in core.place(now))


def seen(view: WorkerCredits) -> tuple[object, ...]:
    tokens = [view.outstanding_tokens(kind) for kind in RequestClass]
    return tokens, view.startable_pages, view.load_tokens, view.idle


def test_what_is_counted_as_placements_come_is_what_a_report_finds_in_the_table() -> None:
    core, view = placing(granted=9)
    place(core, "a", 20, RequestClass.SHORT)
    place(core, "b", 50, RequestClass.LONG)
    place(core, "c", 33, RequestClass.SHORT)
    counted = seen(view)
    assert counted[:2] == ([53, 50], 64 - (2 + 1) - (4 + 1) - (3 + 1))
    core.report(WORKER, report(granted=9), 0.0)
    assert seen(view) == counted
    core.report(WORKER, report(granted=9, seen=1, waiting_tokens=20), 0.0)
    place(core, "d", 16, RequestClass.SHORT)
    counted = seen(view)
    core.report(WORKER, report(granted=9, seen=1, waiting_tokens=20), 0.0)
    assert seen(view) == counted


def test_placements_stop_counting_one_after_the_other() -> None:
    core, view = placing(granted=9)
    lasts = RULES.submit_within_s + OUTSTANDING_GRACE_S
    for number in range(3):
        place(core, f"r{number}", 16, RequestClass.SHORT, float(number))
    assert view.overdue(lasts - 0.5) == []
    assert view.overdue(1.0 + lasts) == [key("r0"), key("r1")]
    core.report(WORKER, report(granted=9), 1.0 + lasts)
    assert list(view.outstanding) == [key("r2")]
