"""A tenant's own usage as a body: one object a row, names of its splits beside the sums.

Knows nothing of HTTP: plain dicts come out.
"""

import dataclasses
from typing import Any

from services.domain.usage import UsageReport


def usage_body(tenant: str, report: UsageReport) -> dict[str, Any]:
    """Return /v1/usage's body."""
    return {
        "object": "usage",
        "tenant": tenant,
        "first_day": report.first.isoformat(),
        "last_day": report.last.isoformat(),
        "currency": report.currency,
        "data": [
            {split.value: name for split, name in row.names.items()} | dataclasses.asdict(row.counts)
            for row in report.rows
        ],
    }
