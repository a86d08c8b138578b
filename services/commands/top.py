"""`quire top`: what each tenant gets now, beside what its weight would give it.

Asks scheduler and kvmanager every few seconds and shows the difference; changes nothing. Knows how it looks;
how rates are made of two looks is `tenant_rates`'.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import sys
import time
from collections.abc import AsyncIterator, Sequence

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from services.commands.output import add_output_flags, console, counted, print_json
from services.commands.suite import NO_SUITE, add_suite_flags, addresses
from services.commands.tenant_rates import Look, TenantRates, rates
from services.commands.tls_flags import operator_tls
from services.rpc.fleet_status import QueueStatus, index_status, queue_and_tenants

NO_ANSWER = f"the scheduler does not answer: {NO_SUITE}"
_AROUND_ROWS = 8
"""Lines of a screen that are not rows of tenants."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """What one screen shows."""

    every_s: float
    """Seconds that the rates are of."""
    queue: QueueStatus | None
    """None: the scheduler does not answer."""
    tenants: list[TenantRates]


def main(argv: Sequence[str]) -> int:
    try:
        return asyncio.run(_show(arguments(argv)))
    except KeyboardInterrupt:
        return 0


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(
        prog="quire top",
        description="Show tenants by tokens: queue, pages, share against weight, hit rate, what is degraded.",
        epilog="examples:\n  quire top\n  quire top --once --json | jq '.tenants[] | {tenant, tokens_per_s}'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--once", action="store_true", help="show one interval and end")
    parser.add_argument("--every", type=_seconds, default=2.0, metavar="S", help="interval [default 2]")
    parser.add_argument("--rows", type=int, metavar="N", help="most tenants [default: as the screen holds]")
    add_suite_flags(parser, gateway=False)
    add_output_flags(parser)
    return parser.parse_args(argv)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError("must be 0.05 to 3600 seconds")
    return value


async def screens(args: argparse.Namespace) -> AsyncIterator[Top]:
    """Yield a screen after each interval."""
    before, at = (await _look(args))[1], time.monotonic()
    while True:
        await asyncio.sleep(args.every)
        queue, now = await _look(args)
        seconds = time.monotonic() - at
        rows = [] if now is None else rates(before or now, now, seconds)
        yield Top(every_s=seconds, queue=queue, tenants=rows)
        before, at = now, at + seconds


async def _look(args: argparse.Namespace) -> tuple[QueueStatus | None, Look | None]:
    where, tls = addresses(args), operator_tls(args)
    asked, index = await asyncio.gather(
        queue_and_tenants(where["scheduler"], tls), index_status(where["kvmanager"], tls)
    )
    if asked is None:
        return None, None
    queue, tenants = asked
    pages = {} if index is None else index.tenant_pages
    return queue, Look(term=queue.term, tenants=tenants, pages=pages)


async def _show(args: argparse.Namespace) -> int:
    screen = console()
    is_live = screen.is_terminal and not args.json and not args.once
    with Live(console=screen, auto_refresh=False) if is_live else contextlib.nullcontext() as live:
        async for top in screens(args):
            if args.json:
                print_json(top)
                if top.queue is None:
                    print(NO_ANSWER, file=sys.stderr)
            elif live is None:
                screen.print(show(top, args.rows))
            else:
                live.update(show(top, args.rows or max(1, screen.height - _AROUND_ROWS)), refresh=True)
            if args.once:
                return 0 if top.queue is not None else 1
    return 0


def show(top: Top, most: int | None = None) -> Group:
    """Lay one screen out, with at most so many tenants; None: all."""
    if top.queue is None:
        return Group(Text(NO_ANSWER, style="red"))
    queue, rows = top.queue, top.tenants[:most]
    total = sum(row.tokens_per_s for row in top.tenants)
    head = (
        f"{counted(len(top.tenants), 'tenant')}, {total:,.0f} tokens/s, {queue.waiting} requests wait "
        f"(oldest {queue.oldest_wait_ms / 1000:.1f} s), {sum(row.pages for row in top.tenants)} pages held"
    )
    parts: list[Text | Table] = [Text(head)]
    if queue.degraded:
        parts.append(Text(f"degraded   {', '.join(queue.degraded)}", style="yellow"))
    parts.append(_table(rows))
    if len(rows) < len(top.tenants):
        parts.append(Text(f"and {len(top.tenants) - len(rows)} more"))
    return Group(*parts)


def _table(rows: Sequence[TenantRates]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("tenant", no_wrap=True)
    table.add_column("band")
    for name in ("tokens/s", "out/s", "share", "by weight", "waiting", "pages", "hits"):
        table.add_column(name, justify="right")
    table.add_column("degraded")
    for row in rows:
        table.add_row(
            row.tenant,
            row.band,
            f"{row.tokens_per_s:,.0f}",
            f"{row.output_tokens_per_s:,.0f}",
            _percent(row.share),
            _percent(row.fair_share),
            str(row.waiting),
            str(row.pages),
            _percent(row.hit_rate),
            Text(", ".join(row.degraded), style="yellow"),
        )
    return table


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f} %"
