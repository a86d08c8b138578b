"""Ids given by steps, as parallel arrays: made by a step, cut by gateway, joined over a moment.

Knows nothing of who reads them or of how they travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import isnan, nan

from worker.engine.batch import TopLogprobs


@dataclass(slots=True)
class StepTokens:
    """Rows, each of them a choice and its next ids.

    A stop id is among them (and counted); whoever makes text leaves it out.
    """

    handles: list[int] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    first_positions: list[int] = field(default_factory=list)
    """Index of the row's first id among the choice's output tokens, earlier attempts included."""
    counts: list[int] = field(default_factory=list)
    """Ids of each row, 1 at least."""
    token_ids: list[int] = field(default_factory=list)
    """All rows' ids, one row after the other."""
    logprobs: list[float] = field(default_factory=list)
    """Empty, or parallel to `token_ids`; NaN where not asked for (or, of an earlier attempt, not known)."""
    tops: list[tuple[int, TopLogprobs]] = field(default_factory=list)
    """Index into `token_ids` and its alternatives."""

    @property
    def is_plain(self) -> bool:
        """One id in each row, and nothing said of them."""
        return len(self.token_ids) == len(self.handles) and not self.logprobs

    def add(self, handle: int, choice: int, first_position: int, token_ids: Sequence[int]) -> int:
        """Add a row; return the index of its first id."""
        index = len(self.token_ids)
        self.handles.append(handle)
        self.choices.append(choice)
        self.first_positions.append(first_position)
        self.counts.append(len(token_ids))
        self.token_ids += token_ids
        return index

    def annotate(self, index: int, logprob: float, top: TopLogprobs | None) -> None:
        """Give the id at `index` its log-probability and alternatives."""
        self._pad()
        self.logprobs[index] = logprob
        if top is not None:
            self.tops.append((index, top))

    def whole(self) -> "StepTokens":
        """Return these tokens when nothing more is added."""
        if self.logprobs:
            self._pad()
        return self

    def select(self, rows: Sequence[int]) -> "StepTokens":
        """Return some of the rows, in the order given."""
        return join([self], [rows])

    def _pad(self) -> None:
        self.logprobs += [nan] * (len(self.token_ids) - len(self.logprobs))


def join(parts: Sequence[StepTokens], rows: Sequence[Sequence[int]] | None = None) -> StepTokens:
    """Put the rows of consecutive steps together, those of one choice into one row.

    Args:
        rows: Which rows of each part; all when not given.
    """
    if rows is None:
        first = parts[0]
        if all(
            part.is_plain and part.handles == first.handles and part.choices == first.choices
            for part in parts
        ):
            return _zip(parts)
        rows = [range(len(part.handles)) for part in parts]
    where: dict[tuple[int, int], list[tuple[StepTokens, int, int, int]]] = {}
    for part, chosen in zip(parts, rows, strict=True):
        starts = list(accumulate(part.counts, initial=0))
        for row in chosen:
            piece = (part, row, starts[row], starts[row + 1])
            where.setdefault((part.handles[row], part.choices[row]), []).append(piece)
    joined = StepTokens()
    tops = {id(part): dict(part.tops) for part in parts}
    for (handle, choice), pieces in where.items():
        ids = [token_id for part, _, start, end in pieces for token_id in part.token_ids[start:end]]
        part, row, _, _ = pieces[0]
        index = joined.add(handle, choice, part.first_positions[row], ids)
        for part, _, start, end in pieces:
            for place in range(start, end) if part.logprobs else ():
                if not isnan(part.logprobs[place]):
                    joined.annotate(index + place - start, part.logprobs[place], tops[id(part)].get(place))
            index += end - start
    return joined.whole()


def _zip(parts: Sequence[StepTokens]) -> StepTokens:
    """Join steps of the same choices, each with one id of each."""
    first = parts[0]
    steps = zip(*(part.token_ids for part in parts), strict=True)
    token_ids = [token_id for row in steps for token_id in row]
    counts = [len(parts)] * len(first.handles)
    return StepTokens(first.handles, first.choices, first.first_positions, counts, token_ids)
