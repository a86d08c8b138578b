"""Accounts for every placement that the scheduler has made on this worker: submitted, given back or too late.

Knows numbers, keys and times only; whether the engine takes a request is not its business. Placements are
numbered from 1 on each link to the scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.domain.errors import StaleAttempt
from services.domain.ids import RequestKey

MAX_REMEMBERED = 4096
"""Used placements whose request is remembered, to tell a repeated Submit from a number of an earlier link."""
MAX_AHEAD = 1 << 16
"""No scheduler places so many at once: such a number is an error."""


@dataclass(slots=True)
class PlacementBook:
    """Placements of one link. Time comes in as `now` (seconds).

    Invariant: each number up to `highest` is in exactly one place: at or below `seen` or in `_done`
    (accounted for), in `_inside` (handed to the engine, not seen by a step yet) or in `_due` (its Submit is
    waited for).
    """

    submit_within_s: float = 2.0
    """Seconds in which a placement is to be submitted; the scheduler says how many when it welcomes us."""
    term: int = 0
    """Highest term that has spoken to this worker; 0 when none has."""
    seen: int = 0
    highest: int = 0
    lost: int = 0
    """Placements that brought no request: their credit goes back to the scheduler."""
    _done: set[int] = field(default_factory=set)
    _inside: dict[RequestKey, int] = field(default_factory=dict)
    _due: dict[int, float] = field(default_factory=dict)
    _user: dict[int, RequestKey] = field(default_factory=dict)

    @property
    def num_inside(self) -> int:
        """Requests handed to the engine that no step has seen."""
        return len(self._inside)

    def obey(self, term: int) -> bool:
        """Accept `term` unless a higher one has spoken.

        Returns:
            Whether the term is to be obeyed.
        """
        if term > self.term:
            if self.term:
                self.begin_link()
            self.term = term
        return term == self.term

    def begin_link(self) -> None:
        """Start anew: the scheduler numbers from 1 and counts grants from 0 after each Hello."""
        self.seen = self.highest = self.lost = 0
        self._done.clear()
        self._due.clear()
        self._user.clear()
        self._inside = dict.fromkeys(self._inside, 0)

    def placed(self, highest: int, abandoned: Sequence[int], now: float) -> None:
        """Note which placements exist and which of them nobody will submit."""
        self._raise_highest(max((highest, *abandoned)), now)
        for seq in abandoned:
            self._lose(seq)

    def check_submit(self, key: RequestKey, term: int, seq: int) -> None:
        """Say whether a Submit may still be taken under its placement. Changes nothing.

        A number that another request has used is one of an earlier link: its attempt decides, in the engine.

        Raises:
            StaleAttempt: The term is old, or the placement was used, given back or too late.
        """
        if not term and not self.term:
            return
        if term < self.term:
            raise StaleAttempt(f"placed by term {term}, this worker obeys term {self.term}")
        if seq > self.highest + MAX_AHEAD:
            raise StaleAttempt(f"placement {seq} of term {term} is unknown here")
        if term == self.term and self._is_known(seq) and self._user.get(seq, key) == key:
            raise StaleAttempt(f"placement {seq} of term {term} was used, given back or came too late")

    def submitted(self, key: RequestKey, term: int, seq: int, now: float) -> None:
        """Note that a placement's request is handed to the engine."""
        if term and self.obey(term):
            self._raise_highest(seq, now)
        self._inside[key] = seq if self._due.pop(seq, None) is not None else 0
        if self._inside[key]:
            self._user[seq] = key
            if len(self._user) > MAX_REMEMBERED:
                del self._user[next(iter(self._user))]

    def entered(self, key: RequestKey) -> None:
        """Account for a placement whose request a step has taken or refused."""
        seq = self._inside.pop(key, 0)
        if seq:
            self._account(seq)

    def unused(self, term: int, seq: int, now: float) -> None:
        """Take back the credit of a placement whose Submit brought the engine nothing new."""
        if term and seq <= self.highest + MAX_AHEAD and self.obey(term):
            self._raise_highest(seq, now)
            self._lose(seq)

    def expire(self, now: float) -> int:
        """Take back the credit of placements whose Submit did not come in time.

        Returns:
            How many.
        """
        late = [seq for seq, due in self._due.items() if due <= now]
        for seq in late:
            self._lose(seq)
        return len(late)

    def _is_known(self, seq: int) -> bool:
        return seq <= self.highest and seq not in self._due

    def _raise_highest(self, highest: int, now: float) -> None:
        for seq in range(self.highest + 1, highest + 1):
            self._due[seq] = now + self.submit_within_s
        self.highest = max(self.highest, highest)

    def _lose(self, seq: int) -> None:
        if self._due.pop(seq, None) is not None:
            self.lost += 1
            self._account(seq)

    def _account(self, seq: int) -> None:
        self._done.add(seq)
        while self.seen + 1 in self._done:
            self.seen += 1
            self._done.remove(self.seen)
