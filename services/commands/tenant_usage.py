"""`quire tenant usage`: what a tenant and all below it used and what it cost, as a table, JSON or CSV.

Knows flags and how a report is shown; sums come as they are.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rich.table import Table

from services.commands.output import console, print_json
from services.commands.tenant_connection import add_command
from services.domain.tenant import NANO
from services.domain.usage import Split, UsageCounts, UsageReport, UsageRow, splits_of
from services.rpc.tenant_admin import TenantAdminClient

_COLUMNS = ("requests", "uncached", "cached", "output", "page_seconds", "cost", "currency", "refusals")


def add_usage_command(commands: Any) -> None:
    """Add the command below `quire tenant`."""
    usage = add_command(commands, "usage", _usage, "say what a tenant and all below it used")
    usage.add_argument("id")
    usage.add_argument(
        "--period",
        default="month",
        metavar="day|month|FROM..TO",
        help="of UTC days, both ends inclusive, like 2026-01-01..2026-01-31 [default this month]",
    )
    usage.add_argument(
        "--by",
        action="append",
        default=[],
        choices=[one.value for one in Split],
        help="a row for each; may be repeated",
    )
    usage.add_argument("--csv", action="store_true", help="print CSV, with a header")


async def _usage(client: TenantAdminClient, args: argparse.Namespace) -> int:
    by = splits_of(args.by)
    report = await client.usage(args.id, period=args.period, by=by)
    rows = [_values(report, row, args.id) for row in report.rows]
    if args.json:
        for row in rows:
            print_json(row)
    elif args.csv:
        header = [*_head(by), *_COLUMNS]
        writer = csv.DictWriter(sys.stdout, header, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "refusals": _refusals(row["refusals"])} for row in rows)
    else:
        print(f"{args.id}, {report.first} to {report.last} (UTC)")
        console().print(_table(report, by))
    return 0


def _head(by: Sequence[Split]) -> list[str]:
    return [*by] if Split.TENANT in by else [Split.TENANT, *by]


def _values(report: UsageReport, row: UsageRow, tenant: str) -> dict[str, Any]:
    """Return a row by column, always with the tenant that was asked for."""
    counts = row.counts
    return {
        Split.TENANT.value: tenant,
        **{split.value: name for split, name in row.names.items()},
        "requests": counts.requests,
        "uncached": counts.uncached_tokens,
        "cached": counts.cached_tokens,
        "output": counts.output_tokens,
        "page_seconds": f"{Decimal(counts.page_ms) / 1000:f}",
        "cost": shown_cost(counts.cost_nanos),
        "currency": report.currency,
        "refusals": dict(counts.refusals),
    }


def _table(report: UsageReport, by: Sequence[Split]) -> Table:
    table = Table(*by, *_COLUMNS, box=None, pad_edge=False)
    total = UsageCounts()
    for row in report.rows:
        total = total + row.counts
        table.add_row(*row.names.values(), *_cells(report, row.counts))
    if by:
        table.add_row("total", *[""] * (len(by) - 1), *_cells(report, total))
    return table


def _cells(report: UsageReport, counts: UsageCounts) -> list[str]:
    values = _values(report, UsageRow({}, counts), "")
    values["refusals"] = _refusals(values["refusals"])
    return [str(values[name]) for name in _COLUMNS]


def shown_cost(nanos: int) -> str:
    """Return billionths as an exact decimal of the unit."""
    units, rest = divmod(nanos, NANO)
    return f"{units}.{rest:09d}".rstrip("0").rstrip(".")


def _refusals(refusals: dict[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in sorted(refusals.items()))
