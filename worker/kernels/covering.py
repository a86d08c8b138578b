"""Chooses few of all combinations of values so that any two values of different factors meet in one of them.

What compiles wrong does so, nearly always, for one value or for two together; all combinations would take a
compiler hours. Knows sequences alone.

Source: Cohen et al. 1997, "The AETG System: An Approach to Testing Based on Combinatorial Design".
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
    bits = {pair: 1 << place for place, pair in enumerate(_pairs_of(factors))}

    def held(row: Row) -> int:
        """Return the pairs of values that a row has, a bit each."""
        return sum(bits[pair] for pair in combinations(enumerate(row), 2))

    rows = list(dict.fromkeys(taken))
    candidates = [(row, held(row)) for row in product(*factors)]
    missing = (1 << len(bits)) - 1
    for row in rows:
        missing &= ~held(row)
    uses = Counter(value for row in rows for value in enumerate(row))
    while missing:
        new = [(pairs & missing).bit_count() for _, pairs in candidates]
        most = max(new)
        # Of equals the one whose values were seldom taken, so that no value has more than its share.
        row, pairs = min(
            (candidate for candidate, count in zip(candidates, new, strict=True) if count == most),
            key=lambda candidate: sum(uses[value] for value in enumerate(candidate[0])),
        )
        rows.append(row)
        uses.update(enumerate(row))
        missing &= ~pairs
    return rows


def _pairs_of(factors: Sequence[Sequence[Any]]) -> Iterator[tuple[tuple[int, Any], tuple[int, Any]]]:
    """Yield every two values of different factors, each with the place of its factor."""
    for (i, left), (j, right) in combinations(enumerate(factors), 2):
        for one, other in product(left, right):
            yield (i, one), (j, other)
