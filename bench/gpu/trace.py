"""Reads from a profiler's trace when a device was busy.

Knows Chrome's trace format and the categories that torch's profiler writes; nothing of torch itself.

Source: torch's `export_chrome_trace`; kineto's activity types.
"""

import json
from collections.abc import Iterator
from pathlib import Path

BUSY = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""Categories of what runs on a device."""


def busy_intervals(path: Path) -> Iterator[tuple[float, float]]:
    """Yield start and end in microseconds of everything that a device ran."""
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") in BUSY and event.get("ph") == "X":
            yield event["ts"], event["ts"] + event["dur"]
