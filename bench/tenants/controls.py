"""Checks that are run with their feature and without, as rows of `python -m bench.tenants`.

Where the policy decides (long behind short, floors of bands) the table's other rows have FIFO beside ours.
"""

from bench.tenants.check import Check
from bench.tenants.doors import audit, budget_end, key_rotation, live_edit
from bench.tenants.faults import breaker, quarantine, strangers
from bench.tenants.ladder import beside_a_flood, every_step

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


async def rows() -> list[tuple[str, list[str]]]:
    """Run every check without its feature and with it; return what to print."""
    found = []
    for what, check in CHECKS.items():
        without, with_it = await check(False), await check(True)
        verdicts = [f"{one.told} {'ok' if one.holds else 'NO'}" for one in (without, with_it)]
        found.append((what, verdicts))
    return found
