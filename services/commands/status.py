"""`quire status`: processes, queue, credits, pages and hit rate of a suite on this machine.

Knows how they look; asks, and changes nothing.
"""

import argparse
import asyncio
import dataclasses
from collections.abc import Sequence

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from services.commands.output import add_output_flags, console, counted, print_json
from services.commands.suite import NO_SUITE, add_suite_flags, addresses
from services.commands.tls_flags import operator_tls
from services.rpc.fleet_status import (
    IndexStatus,
    PlacedWorker,
    QueueStatus,
    WorkerStatus,
    index_status,
    queue_status,
    serving,
    worker_statuses,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One look at a suite."""

    up: dict[str, bool]
    """Process -> it welcomes calls."""
    queue: QueueStatus | None
    index: IndexStatus | None
    workers: tuple[WorkerStatus | None, ...]
    """In the order of `queue.workers`; None did not answer."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="quire status",
        description="Show processes, queue, credits, KV pages and hit rate of the suite on this machine.",
        epilog="examples:\n  quire status\n  quire status --watch\n  quire status --json | jq .queue.waiting",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--watch", action="store_true", help="look again every second until Ctrl-C")
    add_suite_flags(parser)
    add_output_flags(parser)
    args = parser.parse_args(argv)
    try:
        status = asyncio.run(_watch(args) if args.watch else _once(args))
    except KeyboardInterrupt:
        return 0
    return 0 if all(status.up.values()) else 1


async def look(args: argparse.Namespace) -> Status:
    """Ask everybody once."""
    tls, where = operator_tls(args), addresses(args)
    answers = await asyncio.gather(*(serving(role, address, tls) for role, address in where.items()))
    queue, index = await asyncio.gather(
        queue_status(where["scheduler"], tls), index_status(where["kvmanager"], tls)
    )
    known = [] if queue is None else [worker.address for worker in queue.workers]
    workers = await worker_statuses(known, tls)
    up = dict(zip(where, answers, strict=True))
    if queue is not None:
        up |= {one.name: got is not None for one, got in zip(queue.workers, workers, strict=True)}
    return Status(up=up, queue=queue, index=index, workers=tuple(workers))


async def _once(args: argparse.Namespace) -> Status:
    status = await look(args)
    if args.json:
        print_json(status)
    else:
        console().print(show(status))
    return status


async def _watch(args: argparse.Namespace) -> Status:
    screen = console()
    if args.json or not screen.is_terminal:
        while True:
            await _once(args)
            await asyncio.sleep(1)
    with Live(console=screen, auto_refresh=False) as live:
        while True:
            live.update(show(await look(args)), refresh=True)
            await asyncio.sleep(1)


def show(status: Status) -> Group:
    """Lay one look out as text and a table."""
    parts: list[Text | Table] = [_processes(status.up)]
    if not any(status.up.values()):
        parts.append(Text(f"nobody answers: {NO_SUITE}"))
    if (queue := status.queue) is not None:
        parts.append(
            Text(
                f"queue      {queue.waiting} waiting ({queue.waiting_tokens} tokens, oldest "
                f"{queue.oldest_wait_ms / 1000:.1f} s), {queue.placed_total} placed, "
                f"{queue.rejected_total} refused, {counted(queue.num_gateways, 'gateway')}"
            )
        )
        if queue.degraded:
            parts.append(Text(f"degraded   {', '.join(queue.degraded)}", style="yellow"))
        parts += [
            Text(
                f"quarantine {held.digest}: {held.num_workers} workers died with this prompt, refused for "
                f"{held.left_s:.0f} s more (`quire release {held.digest}`)",
                style="red",
            )
            for held in queue.quarantine
        ]
    if (index := status.index) is not None:
        parts.append(
            Text(
                f"prefixes   {index.blocks} blocks known, some found by "
                f"{_percent(index.hits_total, index.queries_total)} of {index.queries_total} look-ups"
            )
        )
    if status.queue is not None and status.workers:
        parts.append(_workers(status.queue, status.workers))
    return Group(*parts)


def _processes(up: dict[str, bool]) -> Text:
    text = Text("processes  ")
    for name, is_up in up.items():
        text.append("● " if is_up else "○ ", style="green" if is_up else "red")
        text.append(f"{name}{'' if is_up else ' (no answer)'}  ")
    return text


def _workers(queue: QueueStatus, workers: Sequence[WorkerStatus | None]) -> Table:
    table = Table(
        *("worker", "model", "credits", "running", "waiting", "pages held/cached/free"),
        *("prefix hits", "tokens in/out", "preempted"),
        box=None,
        pad_edge=False,
    )
    for placed, own in zip(queue.workers, workers, strict=True):
        credits = f"{max(0, placed.granted - placed.placed)} free"
        name = f"{placed.name}{' (draining)' if placed.draining else ''}{_breaker(placed)}"
        if own is None:
            table.add_row(name, placed.model, credits, "no answer")
            continue
        seen = own.cached_tokens + own.prefill_tokens
        table.add_row(
            name,
            placed.model,
            credits,
            str(own.running),
            str(own.waiting),
            f"{own.held_pages}/{own.cached_pages}/{own.free_pages}",
            _percent(own.cached_tokens, seen),
            f"{own.prefill_tokens}/{own.decode_tokens}",
            str(own.preemptions),
        )
    return table


def _breaker(placed: PlacedWorker) -> str:
    """Say why a worker is given no requests, and until when; nothing of one whose breaker is closed."""
    if placed.breaker in ("closed", "unspecified"):
        return ""
    left = f", tries again in {placed.breaker_retry_ms / 1000:.0f} s" if placed.breaker == "open" else ""
    return f" (breaker {placed.breaker}: {placed.breaker_reason}{left})"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
