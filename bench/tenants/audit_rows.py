"""The rows of the audit: what its checker finds with every limit on, with each off, and with deaf clients.

Every run has a store of its own. Knows what is asked for; what happens is `audit`'s.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from bench.tenants.audit import GRACE_S, Audit, Plan, audit
from bench.tenants.audit_client import CAPS, FIELDS
from bench.tenants.table import Row

CAP_FINDINGS = {"prompt_cap", "output_cap"}
NUM_OF_CONTROLS = 500
"""Requests of each control."""


async def rows(num_requests: int, num_tenants: int) -> AsyncIterator[Row]:
    """Run it, then its controls; judge."""
    plan = Plan(num_requests=num_requests, num_tenants=num_tenants, num_kills=3, num_restarts=3)
    found = await _run(plan)
    report = found.report
    control = replace(plan, num_requests=NUM_OF_CONTROLS, num_tenants=20, num_kills=0, num_restarts=0)
    deaf = (await _run(replace(control, is_deaf=True, edits_each=20))).report
    late = sum(one.kind == "other_limits" for one in deaf.findings)
    yield Row(
        f"{found.num_edits} edits, felt after ms of the store's clock",
        (f"deaf: {late} requests late", "", f"{report.largest_lag_ms} at most"),
        f"<= {1000 * GRACE_S:.0f}",
        bool(late) and report.largest_lag_ms <= 1000 * GRACE_S and len(report.versions) > 1,
    )
    lost = len(found.left) + len(found.not_admitted)
    yield Row(
        "  left at the end: reserved, or counted otherwise",
        ("", "", str(lost)),
        f"0, {report.num_expired} leases ran out, {found.num_unknown} answers lost",
        not lost,
    )
    seen: list[str] = []
    for kind in (*FIELDS, CAPS):
        kinds = {one.kind for one in (await _run(replace(control, without=(kind,)))).report.findings}
        seen += [kind] if kinds & (CAP_FINDINGS if kind == CAPS else {kind}) else []
    exceeded = Counter(one.kind for one in report.findings)
    yield Row(
        f"  limits exceeded, {num_requests} requests of {num_tenants} tenants",
        (f"one off: {len(seen)} of {len(FIELDS) + 1} found", "", _told(exceeded)),
        f"nothing, over {found.num_kills} kills, {found.num_restarts} restarts",
        not exceeded and len(seen) == len(FIELDS) + 1,
    )


async def _run(plan: Plan) -> Audit:
    with tempfile.TemporaryDirectory() as folder:
        return await asyncio.wait_for(audit(plan, Path(folder)), timeout=1800)


def _told(exceeded: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in exceeded.items()) or "nothing"
