"""Read what a child process wrote into its log: why it ended, what it does now.

Knows our log lines (JSON with an event) and the one line of a fatal error; nothing of any service.
"""

import json
import os
from pathlib import Path

_TAIL_BYTES = 16_384


def why_it_ended(log: Path, exit_code: int) -> str:
    """Return one line: the child's own last error, or how it exited."""
    lines = _tail(log)
    for line in reversed(lines):
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"
    for line in reversed(lines):
        event = _event(line)
        if event.get("level") == "error" or "exception" in event:
            what = str(event.get("exception", event.get("event"))).split(" in ")[0]
            return f"{how}: {what}"
    if lines and not lines[-1].startswith("{"):
        return f"{how}: {lines[-1]}"
    return how


def what_it_does(log: Path) -> str:
    """Return the child's last event as words, e.g. `weights loading`; empty when there is none.

    Events that count show how far they are: `warming up 3 of 17`.
    """
    for line in reversed(_tail(log)):
        event = _event(line)
        if name := event.get("event"):
            words = str(name).replace("_", " ")
            return f"{words} {event['done']} of {event['of']}" if {"done", "of"} <= event.keys() else words
    return ""


def how_far(log: Path) -> object | None:
    """Return the count of the child's last event that counts, `done` of `of`; None where there is none."""
    return next((event["done"] for line in reversed(_tail(log)) if "done" in (event := _event(line))), None)


def _event(line: str) -> dict[str, object]:
    if not line.startswith("{"):
        return {}
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return []
