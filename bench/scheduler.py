"""How many requests a second the scheduler's core admits and places, on one core, by length of the queue.

Run: `python -m bench.scheduler [--seconds 2] [--waiting 0 1000 50000] [--workers 8] [--tenants 1000]`.
Nothing but the pure core runs: no gRPC, no clock inside. Each decision is one Acquire, one Report and one
`place`, while the given number of requests of so many tenants waits. Time is this process's CPU time, so
neighbours disturb it less.
"""

import argparse
import itertools
import time
from collections.abc import Callable

from scheduler.collector import collect_seldom
from scheduler.core.credits import Report, WorkerHello
from scheduler.core.fair_queue import FairPolicy, as_vtc
from scheduler.core.fifo import FifoPolicy
from scheduler.core.outputs import Placed
from scheduler.core.policy import QueuePolicy
from scheduler.core.request import Acquire
from scheduler.core.rules import Rules
from scheduler.core.share_queue import FairRules
from scheduler.core.state import SchedulerCore
from services.domain.bands import Bands
from services.domain.capacity import Capacity
from services.domain.generation import Limits, RequestClass
from services.domain.ids import Epoch, GatewayId, Namespace, RequestId, RequestKey, TenantId, WorkerId

GATEWAY = GatewayId("gateway-0")
BANDS = tuple(Bands())


POLICIES: dict[str, Callable[[], QueuePolicy]] = {
    "fair": FairPolicy,
    "vtc": lambda: FairPolicy(as_vtc(FairRules())),
    "fifo": FifoPolicy,
}


def acquire(number: int, num_tenants: int) -> Acquire:
    """Return request `number`: bands in turn, every one with a deadline."""
    return Acquire(
        key=RequestKey(RequestId(f"r{number}"), 1),
        tenant=TenantId(f"t{number % num_tenants}"),
        band=BANDS[number % len(BANDS)],
        request_class=RequestClass.SHORT,
        model="m",
        num_prompt_tokens=200,
        max_output_tokens=100,
        limits=Limits(total_s=3600.0),
    )


def fleet(core: SchedulerCore, num_workers: int) -> list[WorkerId]:
    """Connect workers whose pools are never full."""
    names = [WorkerId(f"worker-{i}") for i in range(num_workers)]
    for name in names:
        hello = WorkerHello(
            worker=name,
            epoch=Epoch(1),
            address="127.0.0.1:1",
            model="m",
            revision="r",
            namespace=Namespace("n"),
            capacity=Capacity(max_context_tokens=4096, total_pages=100_000, page_size=16, max_sequences=256),
            max_step_tokens=8192,
            max_prefill_tokens=8192,
        )
        core.worker_connected(hello, 0.0)
    return names


def decide(
    core: SchedulerCore, names: list[WorkerId], first: int, num_tenants: int
) -> Callable[[float], int]:
    """Return what makes one decision at a given time, from request number `first` on: one Acquire, one Report
    that starts, ends and grants, one `place`; it returns how many were placed."""
    last = {name: RequestKey(RequestId(""), 1) for name in names}
    turns = zip(itertools.count(first), itertools.cycle(names), strict=False)

    def one(now: float) -> int:
        number, name = next(turns)
        core.acquire(GATEWAY, acquire(number, num_tenants), now)
        view = core.fleet.workers[name]
        started = tuple(view.outstanding)
        report = Report(
            seq=view.report.seq + 1,
            placements_seen=view.placed,
            granted=view.placed + 1,
            startable_pages=100_000,
            free_pages=100_000,
            reclaimable_pages=0,
            running=8,
            started=started,
            ended=(last[name],),
        )
        last[name] = started[-1] if started else last[name]
        core.report(name, report, now)
        return sum(isinstance(output, Placed) for output in core.place(now))

    return one


def measure(policy: str, num_waiting: int, num_workers: int, num_tenants: int, seconds: float) -> float:
    """Return decisions per second with `num_waiting` requests in the queue all the time."""
    # Without a grace after the boot: at its end everything that waits is looked at once.
    rules = Rules(max_waiting=10**9, max_waiting_tokens=10**12, boot_grace_s=0.0)
    core = SchedulerCore(rules, POLICIES[policy](), 0.0)
    names = fleet(core, num_workers)
    for number in range(num_waiting):
        core.acquire(GATEWAY, acquire(number, num_tenants), 0.0)
    core.place(0.0)
    decision = decide(core, names, num_waiting, num_tenants)
    began, count = time.process_time(), 0
    while (now := time.process_time() - began) < seconds:
        count += decision(now)
    return count / now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 1000, 50_000], help="queue lengths")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES))
    asked = parser.parse_args()
    collect_seldom()  # As the scheduler does.
    print(f"{'waiting':>8}  {'policy':<6}  {'placed/s':>9}")
    for num_waiting, policy in itertools.product(asked.waiting, asked.policy):
        placed = measure(policy, num_waiting, asked.workers, asked.tenants, asked.seconds)
        print(f"{num_waiting:8d}  {policy:<6}  {placed:9.0f}", flush=True)


if __name__ == "__main__":
    main()
