"""Chooses few of all combinations of values so that any two values of different factors meet in one of them.

What compiles wrong does so, nearly always, for one value or for two together; all combinations would take a
compiler hours. Knows sequences alone.

Source: Cohen et al. 1997, "The AETG System: An Approach to Testing Based on Combinatorial Design".
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

Row = tuple[Any, ...]
"""A value of each factor."""


def covering(*factors: Sequence[Any], taken: Iterable[Row] = ()) -> list[Row]:
    """Return `taken` and after it as many rows as are needed, the same ones for the same arguments.

    Worked number: five factors of 5, 4, 4, 4 and 4 values have 1,280 combinations and 176 pairs of values,
    which 20 to 25 rows hold.

    Args:
        factors: The values of each.
        taken: Rows that are wanted in any case.
    """
    rows = list(dict.fromkeys(taken))
    candidates = [(row, _pairs(row)) for row in product(*factors)]
    missing = set().union(*(pairs for _, pairs in candidates)) - set().union(*map(_pairs, rows))
    uses = Counter(value for row in rows for value in enumerate(row))
    while missing:
        # Of equals the one whose values were seldom taken, so that no value has more than its share.
        row, pairs = max(
            candidates,
            key=lambda one: (len(one[1] & missing), -sum(uses[value] for value in enumerate(one[0]))),
        )
        rows.append(row)
        uses.update(enumerate(row))
        missing -= pairs
    return rows


def _pairs(row: Row) -> set[tuple[tuple[int, Any], ...]]:
    """Return every two values of a row with the places of their factors."""
    return set(combinations(enumerate(row), 2))
