"""One table of all that is asked of tenants' service: what was measured without and with, and a verdict.

A row has FIFO (or the feature off) beside plain VTC (where a policy decides) and ours, and the bound that is
asked for. Knows no scenario.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bench.tenants.check import Outcome

Value = TypeVar("Value")

HEAD = ("", "fifo / off", "vtc", "ours / on", "asked", "")
_WIDTHS = (58, 30, 15, 30, 36, 2)


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is asked for."""

    what: str
    figures: tuple[str, str, str]
    """Without, plain VTC, and with."""
    asked: str
    holds: bool
    """With it what was asked is so, and, where that is the control, without it is not."""

    def text(self) -> str:
        return line((self.what, *self.figures, self.asked, "ok" if self.holds else "NO"))


def line(cells: Sequence[str]) -> str:
    """Return cells under the table's columns."""
    padded = (cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
    return " ".join(padded).rstrip()


def policy_row(
    what: str,
    values: Mapping[str, Value],
    shown: Callable[[Value], str],
    asked: str,
    test: Callable[[Value], bool],
    *,
    is_control: bool = True,
) -> Row:
    """Return the row of something measured under each policy (fifo, vtc, fair).

    Args:
        is_control: Whether FIFO must not do as well: a figure that also holds there shows nothing.
    """
    holds = test(values["fair"]) and not (is_control and test(values["fifo"]))
    return Row(what, (shown(values["fifo"]), shown(values["vtc"]), shown(values["fair"])), asked, holds)


def check_row(what: str, without: Outcome, with_it: Outcome, asked: str = "holds, and not without") -> Row:
    """Return the row of something that must hold with its feature and not without it."""
    told = [f"{one.told}: {'holds' if one.holds else 'does not'}" for one in (without, with_it)]
    return Row(what, (told[0], "", told[1]), asked, with_it.holds and not without.holds)
