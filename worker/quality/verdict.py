"""Holds what was measured against thresholds from a file, and says which of them fails.

Knows numbers and names; knows nothing of how they came about.
"""

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path

from worker.quality.measure import Measured

FEWEST_POSITIONS = 20_000
FEWEST_TASKS = 200
"""Of kinds that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What a version must hold. An unknown key in the file is an error."""

    max_mean_kl: float = 0.010
    """Nats a token, over all text."""
    max_worst_kl: float = 4.0
    """Nats, at the worst position."""
    min_agreement: float = 0.95
    """Share of positions with the baseline's most likely token, 0..1."""
    max_perplexity_ratio: float = 1.02
    """Version's perplexity over the baseline's."""
    max_lost_answers: float = 0.05
    """Share of the baseline's right answers that may be lost, in kinds that count, 0..1."""
    max_added_repetition: float = 0.05
    """Repeated share of all answers above the baseline's, 0..1."""


@dataclass(frozen=True, slots=True)
class Check:
    """One threshold held against one figure."""

    name: str
    value: float
    limit: float
    holds: bool


def read_thresholds(path: Path | None) -> Thresholds:
    """Read a TOML file of thresholds; None gives the defaults.

    Raises:
        ValueError: Not TOML, an unknown key, or a value that is not a number; names the file and the key.
    """
    if path is None:
        return Thresholds()
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise ValueError(f"{path}: cannot be read ({exc})") from exc
    known = {field.name for field in dataclasses.fields(Thresholds)}
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"{path}: unknown threshold {key}; known: {', '.join(sorted(known))}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{path}: {key} must be a number, got {value!r}")
    return Thresholds(**{key: float(value) for key, value in values.items()})


def judge(measured: Measured, limits: Thresholds) -> list[Check]:
    """Return every check; the version passes when all hold."""
    all_text = measured.overall
    checks = [
        _at_most("mean KL", all_text.mean_kl, limits.max_mean_kl),
        _at_most("worst KL", all_text.worst_kl, limits.max_worst_kl),
        _at_least("top-1 agreement", all_text.agreement, limits.min_agreement),
        _at_most(
            "perplexity ratio",
            all_text.perplexity / all_text.baseline_perplexity,
            limits.max_perplexity_ratio,
        ),
    ]
    counting = [score for score in measured.scores if score.counts]
    if counting:
        base = sum(score.num_right_baseline for score in counting)
        lost = max(0, base - sum(score.num_right for score in counting)) / base
        checks.append(_at_most("lost answers", lost, limits.max_lost_answers))
    if measured.num_answers:
        added = max(0.0, measured.repetition - measured.baseline_repetition)
        checks.append(_at_most("added repetition", added, limits.max_added_repetition))
    return checks


def gaps(measured: Measured) -> list[str]:
    """Return what a verdict on the whole model lacks, one phrase each; nothing where enough was measured."""
    found = []
    if measured.overall.num_positions < FEWEST_POSITIONS:
        found.append(f"{measured.overall.num_positions:,} of {FEWEST_POSITIONS:,} positions")
    if measured.left_out:
        found.append(f"no {', '.join(measured.left_out)} text")
    num_tasks = sum(score.num_tasks for score in measured.scores if score.counts)
    if num_tasks < FEWEST_TASKS:
        found.append(f"{num_tasks} of {FEWEST_TASKS} tasks that count")
    return found


def _at_most(name: str, value: float, limit: float) -> Check:
    # A NaN holds nothing.
    return Check(name, value, limit, value <= limit)


def _at_least(name: str, value: float, limit: float) -> Check:
    return Check(name, value, limit, value >= limit)
