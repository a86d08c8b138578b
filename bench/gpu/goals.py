"""The table that a GPU is measured against: what each row compares, its floor, its aim, and the verdict.

Knows numbers and words; knows nothing of how one is measured.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How a score stands to its goal."""

    AIM = "aim reached"
    FLOOR = "floor reached"
    BELOW = "BELOW FLOOR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the score of a row must be; scores are figure / bound."""

    name: str
    of: str
    """What the bound is."""
    floor: float
    aim: float
    is_ceiling: bool = False
    """Whether smaller is better: the floor is then the most that is allowed."""
    is_ratio: bool = False
    """Whether people read the score as `1.23x` and not in percent."""

    def verdict(self, score: float) -> Verdict:
        """Judge a score; a score that is no number is below every floor.

        Worked numbers: at least 80 %, aim 90 %: 0.85 reaches the floor. At most 1.35x, aim 1.15x: 1.2 does.
        """
        if self._reaches(score, self.aim):
            return Verdict.AIM
        return Verdict.FLOOR if self._reaches(score, self.floor) else Verdict.BELOW

    def text(self, score: float) -> str:
        """Return a score as people read it."""
        return f"{score:.2f}x" if self.is_ratio else f"{score:.1%}"

    def _reaches(self, score: float, mark: float) -> bool:
        return score <= mark if self.is_ceiling else score >= mark


DECODE_ATTENTION = Goal(
    name="decode attention, 64 sequences x 8k, GQA 32/8", of="copy bandwidth", floor=0.80, aim=0.90
)
PREFILL_ATTENTION = Goal(
    name="prefill attention, 8k causal bf16", of="bf16 matrix rate", floor=0.50, aim=0.65
)
W4A16 = Goal(name="W4A16 GEMM, M 1-16, 8192x8192", of="copy bandwidth", floor=0.65, aim=0.80)
W8A8 = Goal(
    name="W8A8 grouped GEMM, M 4096, 8192x8192", of="the vendor's int8 rate", floor=0.55, aim=0.70
)  # fmt: skip
DECODE_STEP = Goal(
    name="decode step, 8B bf16, batch 64 x 1k",
    of="(weights + KV bytes) / copy bandwidth",
    floor=1.35,
    aim=1.15,
    is_ceiling=True,
    is_ratio=True,
)
LAUNCH_GAPS = Goal(
    name="launch gaps in that step", of="first to last kernel", floor=0.03, aim=0.01, is_ceiling=True
)
INT4_SPEED = Goal(
    name="8B INT4 + int8 KV, batch 16 x 2k", of="bf16 tokens/s", floor=2.0, aim=2.6, is_ratio=True
)
GOALS = (DECODE_ATTENTION, PREFILL_ATTENTION, W4A16, W8A8, DECODE_STEP, LAUNCH_GAPS, INT4_SPEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    goal: Goal
    variant: str = ""
    """What of the goal this is, such as `int8 KV` or `M 4`."""
    figure: float
    bound: float
    unit: str
    """Of figure and bound: `GB/s`, `TFLOP/s`, `TOP/s`, `ms` or `tokens/s`."""

    @property
    def score(self) -> float:
        """Return figure / bound, NaN where there is no bound."""
        return self.figure / self.bound if self.bound else float("nan")

    @property
    def verdict(self) -> Verdict:
        """Return how the score stands to the goal."""
        return self.goal.verdict(self.score)

    def as_dict(self) -> dict[str, Any]:
        """Return what a result file keeps."""
        kept = asdict(self)
        return {**kept, "score": self.score, "verdict": self.verdict.value}

    def line(self) -> str:
        """Return the row as people read it."""
        goal, variant = self.goal, f", {self.variant}" if self.variant else ""
        least = "at most" if goal.is_ceiling else "at least"
        return (
            f"{goal.name}{variant}: {self.figure:.4g} {self.unit} of {self.bound:.4g} ({goal.of})"
            f" = {goal.text(self.score)}; {least} {goal.text(goal.floor)}, aim {goal.text(goal.aim)}:"
            f" {self.verdict.value}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """What was not measured, and why."""

    name: str
    reason: str

    def line(self) -> str:
        """Return it as people read it."""
        return f"{self.name}: not measured: {self.reason}"


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    lines = ["| row | figure | bound | score | floor | aim | verdict |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        goal, variant = row.goal, f", {row.variant}" if row.variant else ""
        sign = "≤" if goal.is_ceiling else "≥"
        lines.append(
            f"| {goal.name}{variant} | {row.figure:.4g} {row.unit} | {row.bound:.4g} {row.unit}, {goal.of}"
            f" | {goal.text(row.score)} | {sign} {goal.text(goal.floor)} | {goal.text(goal.aim)}"
            f" | {row.verdict.value} |"
        )
    return "\n".join(lines) + "\n"
