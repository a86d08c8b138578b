"""Checks that are run with their feature and without, as rows of `python -m bench.tenants`.

Where the policy decides (long behind short, floors of bands) the table's other rows have FIFO beside ours.
"""

from collections.abc import AsyncIterator

from bench.tenants.check import Check
from bench.tenants.doors import audit, budget_end, key_rotation, live_edit
from bench.tenants.faults import breaker, quarantine, strangers
from bench.tenants.ladder import beside_a_flood, every_step
from bench.tenants.table import Row, check_row

CHECKS: dict[str, Check] = {
    "ladder, requests that felt each step": every_step,
    "ladder, requests of a quiet tenant beside a flood": beside_a_flood,
    "edits under load that were felt elsewhere": live_edit,
    "a budget lowered mid-stream": budget_end,
    "a worker of NaN rows": breaker,
    "a prompt that ends engines": quarantine,
    "a key rotated under load": key_rotation,
    "strangers at a door": strangers,
    "an audit replayed": audit,
}


async def rows() -> AsyncIterator[Row]:
    """Run every check without its feature and with it."""
    for what, check in CHECKS.items():
        yield check_row(what, await check(False), await check(True))
