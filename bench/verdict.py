"""What was asked of a figure, and whether it holds. Knows nothing of how figures are measured."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that was asked for, and what came of it."""

    what: str
    asked: float
    got: float
    unit: str

    @property
    def holds(self) -> bool:
        """Whether it is no more than asked for; for a count, whether it is the one asked for."""
        return self.got == self.asked if self.unit == "answers" else self.got <= self.asked

    def __str__(self) -> str:
        digits = 0 if self.unit == "answers" else 2
        verdict = "holds" if self.holds else "FALLS SHORT"
        return f"{self.what:52}{self.asked:8g} {self.got:9.{digits}f} {self.unit:8}{verdict}"


def verdict(rows: Sequence[Row]) -> int:
    """Print `rows` as a table and return the exit code: 0 if each holds, else 1."""
    print(f"{'':52}{'asked':>8} {'got':>9}")
    for row in rows:
        print(row)
    return 0 if all(row.holds for row in rows) else 1
