"""Finds the fastest tiles among candidates, given what measures one.

Knows candidates and seconds; knows nothing of devices, kernels or files.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Cut = TypeVar("Cut")

Measure = Callable[[Cut, int], float | None]
"""Seconds of a cut with so many rows; None where it cannot be launched."""
IsAllowed = Callable[[Cut], bool]
"""Whether a cut may be committed; asked of fast ones alone, because it takes a compiler seconds to say."""


@dataclass(frozen=True, slots=True)
class Best(Generic[Cut]):
    """A cut and its seconds."""

    cut: Cut
    seconds: float


def fastest(
    cuts: Iterable[Cut], measure: Callable[[Cut], float | None], is_allowed: "IsAllowed[Cut]"
) -> Best[Cut] | None:
    """Return the fastest cut that is allowed, the first of equals; None where there is none."""
    measured = ((cut, measure(cut)) for cut in cuts)
    launched = [Best(cut, seconds) for cut, seconds in measured if seconds is not None]
    in_order = sorted(launched, key=lambda best: best.seconds)
    return next((best for best in in_order if is_allowed(best.cut)), None)


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of a ladder."""

    rows: int
    """It is for so many rows at most."""
    measured: tuple[int, ...]
    """Numbers of rows whose seconds, added up, decide."""


def climb(
    families: Sequence[Sequence[Sequence[Cut]]],
    rungs: Sequence[Rung],
    measure: "Measure[Cut]",
    is_allowed: "IsAllowed[Cut]",
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
        is_allowed: Whether one may be taken.
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
            fastest(cuts, lambda cut, rung=rung: seconds(cut, rung), is_allowed)  # type: ignore[misc]
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
