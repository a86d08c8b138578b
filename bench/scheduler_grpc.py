"""How many requests a second a scheduler process places over gRPC, with a gateway and workers played here.

Run: `python -m bench.scheduler_grpc [--seconds 5] [--ahead 2000] [--workers 4] [--tenants 1000]`. A gateway's
stream keeps so many requests waiting, workers' streams start, end and grant every 5 ms; this process plays
all of them, so of two cores it needs one and the scheduler the other. Beside placements per second stands
what one costs the scheduler in CPU time, which neighbours disturb less, and how many cores each process had:
the rate is the scheduler's limit only where it had about one. There is no kvmanager to ask.
"""

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import psutil

from bench.suite import cpu_seconds
from protos.scheduler.v1 import scheduler_pb2 as pb
from services.chassis.grpc import create_channel
from tests.fakes.scheduler_peers import FakeGateway, FakeWorker, pb_acquire

REPORT_EVERY_S = 0.005
WINDOW = 64
"""Placements that a worker grants ahead."""
WARM_S = 2.0
PAGES = 100_000


class Asker(FakeGateway):
    """Asks for one more whenever one is placed; keeps what was placed for its workers to report."""

    def __init__(self, channel: Any, num_tenants: int) -> None:
        super().__init__(channel)
        self.num_placed = 0
        self.placed: defaultdict[str, list[Any]] = defaultdict(list)
        self._numbers: Iterator[int] = itertools.count()
        self._num_tenants = num_tenants

    def ask(self) -> None:
        number = next(self._numbers)
        tenant = f"t{number % self._num_tenants}"
        self.acquire(pb_acquire(f"r{number}", tenant=tenant, tokens=200, cache_opt_out=True))

    def on_message(self, kind: str, message: Any) -> None:
        super().on_message(kind, message)
        self.heard[kind].clear()
        if kind == "placement":
            self.num_placed += 1
            self.placed[message.worker].append(message.key)
            self.ask()


async def work(worker: FakeWorker, asker: Asker) -> None:
    """Start what was placed and end what was started before, for ever."""
    started: list[Any] = []
    seen = 0
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        now = asker.placed.pop(worker.name, [])
        seen += len(now)
        worker.report(
            granted=seen + WINDOW,
            seen=seen,
            started=now,
            ended=[pb.EndedRequest(key=key) for key in started],
            startable_pages=PAGES,
            free_pages=PAGES,
        )
        worker.heard.clear()
        started = now


async def measure(seconds: float, ahead: int, num_workers: int, num_tenants: int) -> None:
    command = [sys.executable, "-m", "scheduler", "--port", "0", "--probe-port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        while (event := json.loads(await process.stderr.readline()))["event"] != "serving":
            pass
        async with create_channel(f"127.0.0.1:{event['port']}") as channel, asyncio.TaskGroup() as group:
            drain = group.create_task(process.stderr.read())
            shape = {"total_pages": PAGES, "max_sequences": 256, "max_step_tokens": 100 * 8192}
            workers = [FakeWorker(channel, f"worker-{number}") for number in range(num_workers)]
            for worker in workers:
                await worker.connect(**shape)
            asker = await Asker(channel, num_tenants).connect()
            tasks = [group.create_task(work(worker, asker)) for worker in workers]
            for _ in range(ahead):
                asker.ask()
            await asyncio.sleep(WARM_S)
            scheduler = psutil.Process(process.pid)
            cpu, own_cpu = cpu_seconds([scheduler]), time.process_time()
            began, count = time.monotonic(), asker.num_placed
            await asyncio.sleep(seconds)
            took, num = time.monotonic() - began, asker.num_placed - count
            used, own = cpu_seconds([scheduler]) - cpu, time.process_time() - own_cpu
            print(f"{num / took:.0f} placed/s, {num / used:.0f} per CPU-second of the scheduler", end=" ")
            print(f"({1e6 * used / num:.0f} us each), which had {used / took:.2f} cores,", end=" ")
            print(f"its peers {own / took:.2f}; {ahead} waited, of {num_tenants} tenants")
            for task in (*tasks, drain):
                task.cancel()
            for peer in (asker, *workers):
                await peer.leave()
    finally:
        process.kill()
        await process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--ahead", type=int, default=2000, help="requests that wait all the time")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tenants", type=int, default=1000)
    given = parser.parse_args()
    asyncio.run(measure(given.seconds, given.ahead, given.workers, given.tenants))
