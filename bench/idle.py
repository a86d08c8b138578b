"""What the suite costs when nobody asks anything: `python -m bench.idle`.

Sends 1,000 requests to a sim suite, or with `--native` to one whose worker computes, waits for the last
answer, and watches all processes for a minute: CPU as a share of one core, times a thread went to sleep per
second, and memory (PSS, which counts what is shared once). Wakeups say what to look at; unlike CPU time they
do not depend on who else uses the machine. Exit code 1: an answer was missing, or the suite took more than
its bounds.
"""

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from bench.suite import Noise, cpu_seconds, suite
from bench.verdict import Row, verdict
from services.client import AsyncClient
from services.domain.errors import ServeError

MODEL = "smollm2-135m-instruct"
CONCURRENCY = 16
SETTLE_S = 5.0
"""Seconds between the last answer and the first reading: leases settle, reports and copies are written."""
SMALL = ("gateway", "scheduler", "kvmanager")
"""The processes whose memory has a bound together."""
MAX_CPU_PERCENT = 2.0
"""Of one core, all processes together."""
MAX_PSS_MB = 300.0
"""Megabytes of 10^6 bytes, `SMALL` together."""
CONFIG = """
[worker]
sim_step_ms = 1.0
sim_prefill_tokens_per_s = 1000000.0
"""
NATIVE_CONFIG = """
[worker]
executor = "native"
"""


async def _send(target: str, num_requests: int) -> int:
    """Return how many of `num_requests` were answered."""
    left = iter(range(num_requests))
    answered = 0

    async def caller(client: AsyncClient) -> None:
        nonlocal answered
        for number in left:
            prompt = f"request {number} asks what the river carries past the old walls"
            with contextlib.suppress(ServeError):
                await client.generate_text(prompt, max_output_tokens=16, ignore_eos=True)
                answered += 1

    async with AsyncClient(target, model=MODEL) as client, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(caller(client))
    return answered


def _sleeps(process: psutil.Process) -> int:
    """Return how often threads of `process` that still live have gone to sleep."""
    num = 0
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            num += int(lines["voluntary_ctxt_switches"])
    return num


def measure(num_requests: int, idle_s: float, *, is_native: bool) -> tuple[int, dict[str, dict[str, float]]]:
    """Return the number of answers, and per process `cpu_percent` of one core, `sleeps_per_s`, `pss_mb`."""
    flags, config = (("--model", MODEL), NATIVE_CONFIG) if is_native else (("--sim",), CONFIG)
    with suite(*flags, config=config) as running:
        answered = asyncio.run(_send(running.gateway, num_requests))
        time.sleep(SETTLE_S)
        processes, noise = running.named(), Noise()
        cpu = {name: cpu_seconds([process]) for name, process in processes.items()}
        sleeps = {name: _sleeps(process) for name, process in processes.items()}
        began = time.monotonic()
        time.sleep(idle_s)
        took = time.monotonic() - began
        print(f"idle for {took:.0f} s, foreign CPU {noise.foreign_share(0.0):.2f}")
        return answered, {
            name: {
                "cpu_percent": (cpu_seconds([process]) - cpu[name]) / took * 100,
                "sleeps_per_s": (_sleeps(process) - sleeps[name]) / took,
                "pss_mb": process.memory_full_info().pss / 1e6,
            }
            for name, process in processes.items()
        }


def _print(figures: Mapping[str, Mapping[str, float]]) -> None:
    print(f"{'process':24}{'CPU % of a core':>16}{'sleeps/s':>10}{'PSS MB':>9}")
    for name, one in figures.items():
        print(f"{name:24}{one['cpu_percent']:16.2f}{one['sleeps_per_s']:10.1f}{one['pss_mb']:9.1f}")
    print(f"{'all':40}{sum(one['sleeps_per_s'] for one in figures.values()):10.1f}")


def rows(num_requests: int, answered: int, figures: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Put what `measure` returned beside what was asked for."""
    cpu = sum(one["cpu_percent"] for one in figures.values())
    pss = sum(figures[name]["pss_mb"] for name in SMALL)
    return [
        Row(what="requests answered before", asked=num_requests, got=answered, unit="answers"),
        Row(what="CPU of all processes, idle", asked=MAX_CPU_PERCENT, got=cpu, unit="%"),
        Row(what=f"PSS of {' + '.join(SMALL)}", asked=MAX_PSS_MB, got=pss, unit="MB"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1000, help="requests before [1000]")
    parser.add_argument("--native", action="store_true", help="a worker that computes, its threads included")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds to watch [60]")
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args(argv)
    answered, figures = measure(args.requests, args.seconds, is_native=args.native)
    _print(figures)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1))
    return verdict(rows(args.requests, answered, figures))


if __name__ == "__main__":
    raise SystemExit(main())
