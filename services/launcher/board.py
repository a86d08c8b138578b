"""Show the processes coming up: a live table on a terminal, one line per change elsewhere.

Knows how things look; decides nothing.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from services.launcher.child_log import what_it_does

if TYPE_CHECKING:
    from services.launcher.supervisor import Child

_COLOURS = {"up": "green", "restarting": "red", "ended": "dim"}


class Board(Protocol):
    """Where the supervisor reports."""

    def changed(self, children: Sequence["Child"]) -> None:
        """The state of some child may have changed."""
        ...

    def lost(self, name: str, why: str, pause_s: float) -> None:
        """A child ended and will be started again."""
        ...

    def note(self, text: str) -> None: ...

    def settle(self) -> None:
        """Everything is up: leave the terminal to others."""
        ...


class PlainBoard:
    """One line per change, for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, str] = {}
        self._began = time.monotonic()

    def changed(self, children: Sequence["Child"]) -> None:
        for child in children:
            text = describe(child, children, detail=False)
            if self._told.get(child.spec.name) != text:
                self._told[child.spec.name] = text
                self.note(f"{child.spec.name}: {text}")

    def lost(self, name: str, why: str, pause_s: float) -> None:
        self.note(f"{name} {why}; starting it again in {pause_s:.1f} s")

    def note(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self._console.print(Text(f"[{elapsed:6.1f} s] {text}"), soft_wrap=True)

    def settle(self) -> None:
        return None


class LiveBoard(PlainBoard):
    """A table that is redrawn until everything is up; then lines, as in a pipe."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live: Live | None = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def changed(self, children: Sequence["Child"]) -> None:
        if self._live is None:
            super().changed(children)
            return
        self._live.update(_table(children), refresh=True)
        self._told = {child.spec.name: describe(child, children, detail=False) for child in children}

    def settle(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def describe(child: "Child", children: Sequence["Child"], *, detail: bool = True) -> str:
    """Say in words where `child` stands and what it waits for."""
    up = {other.spec.name for other in children if other.state == "up"}
    missing = [name for name in (*child.spec.needs, *child.spec.waits_for) if name not in up]
    if child.state == "up":
        return f"up on port {child.spec.port}" if child.spec.ports else "up on a socket"
    if child.state == "starting" and not missing:
        doing = what_it_does(child.log) if detail else ""
        return f"starting ({doing})" if doing else "starting"
    if child.state in ("waiting", "starting"):
        verb = "waits for" if child.state == "waiting" else "starting, waits for"
        return f"{verb} {', '.join(missing)}" if missing else "starting"
    return str(child.state)


def _table(children: Sequence["Child"]) -> Table:
    table = Table.grid(padding=(0, 2))
    for child in children:
        waited = f"{time.monotonic() - child.since:5.1f} s" if child.state != "up" else ""
        mark = "●" if child.state == "up" else "○"
        colour = _COLOURS.get(str(child.state), "yellow")
        table.add_row(
            Text(mark, style=colour), Text(child.spec.name, style="bold"), describe(child, children), waited
        )
    return table
