"""All that is asked of tenants' service in one table: FIFO, or the feature off, beside ours, and a verdict.

Run: `python -m bench.tenants [--quick] [PART ...]`; all parts take several minutes. Ends with 1 where one row
does not hold, or holds without what it is to show.

    fairness      a flood, weights, prefixes, bands and classes, in virtual time: figures are any machine's
    checks        ladder, edits, budgets, breaker, quarantine, keys, mTLS, audit: with the feature and without
    cost          what a decision of the scheduler costs (over gRPC: `python -m bench.scheduler_grpc`)
    audit         clients race for quotas in a real store while they are killed, it restarts and limits change
    side-channel  one tenant guesses another's prompts by the time to its first token
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence

from bench.tenants import audit_rows, controls, cost, fairness, side_channel
from bench.tenants.table import HEAD, Row, line
from scheduler.collector import collect_seldom
from services.chassis.logging import configure_logging


async def _fairness(is_quick: bool) -> AsyncIterator[Row]:
    for row in fairness.rows(fairness.QUICK if is_quick else fairness.FULL):
        yield row


async def _checks(is_quick: bool) -> AsyncIterator[Row]:
    async for row in controls.rows():
        yield row


async def _cost(is_quick: bool) -> AsyncIterator[Row]:
    for row in cost.rows(*((10_000, 0.5) if is_quick else (100_000, 4.0))):
        yield row


async def _audit(is_quick: bool) -> AsyncIterator[Row]:
    async for row in audit_rows.rows(*((600, 20) if is_quick else (10_000, 200))):
        yield row


async def _side_channel(is_quick: bool) -> AsyncIterator[Row]:
    for row in await side_channel.rows(100 if is_quick else 1000):
        yield row


PARTS: dict[str, Callable[[bool], AsyncIterator[Row]]] = {
    "fairness": _fairness,
    "checks": _checks,
    "cost": _cost,
    "audit": _audit,
    "side-channel": _side_channel,
}


async def show(parts: Sequence[str], *, is_quick: bool) -> bool:
    """Print the rows of some parts as they come; return whether all hold."""
    print(line(HEAD), flush=True)
    held = []
    for part in parts:
        async for row in PARTS[part](is_quick):
            print(row.text(), flush=True)
            held.append(row.holds)
    print(f"{sum(held)} of {len(held)} rows hold")
    return all(held)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="less of everything, and looser bounds for it")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.part) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: no part of this table; it has {', '.join(PARTS)}")
    return 0 if asyncio.run(show(asked.part or list(PARTS), is_quick=asked.quick)) else 1


if __name__ == "__main__":
    configure_logging("bench", level="error")
    collect_seldom()  # As the scheduler does.
    sys.exit(main())
