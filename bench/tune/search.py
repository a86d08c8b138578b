"""Finds the fastest tiles among candidates, given what measures one.

Knows candidates and seconds; knows nothing of devices, kernels or files.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Cut = TypeVar("Cut")

Measure = Callable[[Cut, int], float | None]
"""Seconds of a cut with so many rows; None where it cannot be launched, or may not be."""


@dataclass(frozen=True, slots=True)
class Best(Generic[Cut]):
    """A cut and its seconds."""

    cut: Cut
    seconds: float


def fastest(cuts: Iterable[Cut], measure: Callable[[Cut], float | None]) -> Best[Cut] | None:
    """Return the fastest cut, the first of equals; None where none can be launched."""
    best: Best[Cut] | None = None
    for cut in cuts:
        seconds = measure(cut)
        if seconds is not None and (best is None or seconds < best.seconds):
            best = Best(cut, seconds)
    return best


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of a ladder."""

    rows: int
    """It is for so many rows at most."""
    measured: tuple[int, ...]
    """Numbers of rows whose seconds, added up, decide."""


def climb(
    families: Sequence[Sequence[Sequence[Cut]]], rungs: Sequence[Rung], measure: "Measure[Cut]"
) -> list[Cut] | None:
    """Return a cut for each rung, all of one family; None where no family has one for every rung.

    What decides bits is the same in all cuts of a family. So the family is chosen for all rungs together: the
    one that loses least, rung by rung, against the fastest of any family.

    Worked number: family A takes 1.0 and 4.0 s on two rungs, B 1.5 and 2.0: A loses nothing and twofold
    (1 + 2), B loses 1.5 times and nothing (1.5 + 1): B.

    Args:
        families: Of each family, candidates by rung.
        rungs: In the order of rows.
        measure: Measures one of them.
    """

    def seconds(cut: Cut, rung: Rung) -> float | None:
        total = 0.0
        for rows in rung.measured:
            taken = measure(cut, rows)
            if taken is None:
                return None
            total += taken
        return total

    found: list[list[Best[Cut]]] = []
    for family in families:
        best = [
            fastest(cuts, lambda cut, rung=rung: seconds(cut, rung))  # type: ignore[misc]
            for cuts, rung in zip(family, rungs, strict=True)
        ]
        whole = [one for one in best if one is not None]
        if len(whole) == len(rungs):
            found.append(whole)
    if not found:
        return None
    least = [min(ladder[index].seconds for ladder in found) for index in range(len(rungs))]
    chosen = min(
        found, key=lambda ladder: sum(one.seconds / floor for one, floor in zip(ladder, least, strict=True))
    )
    return [one.cut for one in chosen]
