"""The line of those without a seat: new requests (all their sequences together) and preempted sequences.

Order: band, then preempted before new, then arrival. Knows nothing of pages; whoever admits tells it who
was passed by.
"""

from bisect import insort
from collections.abc import Iterator

from worker.engine.request import Request
from worker.engine.sequence import Sequence


class WaitingEntry:
    """Sequences that take their seats together."""

    __slots__ = ("bypassed", "order", "preempted", "sequences")

    def __init__(self, sequences: list[Sequence], *, preempted: bool) -> None:
        request = sequences[0].request
        self.sequences = sequences
        self.preempted = preempted
        self.order = (request.band, not preempted, request.arrival, sequences[0].choice)
        self.bypassed = 0
        """Later entries that started while this one waited for pages or seats."""

    @property
    def request(self) -> Request:
        return self.sequences[0].request

    @property
    def max_pages(self) -> int:
        """Pages of the worst case of all its sequences, none shared."""
        return sum(sequence.max_pages for sequence in self.sequences)


class WaitingLine:
    """Waiting entries in order."""

    def __init__(self) -> None:
        self._entries: list[WaitingEntry] = []
        self.num_sequences = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[WaitingEntry]:
        return iter(self._entries)

    def add(self, sequences: list[Sequence], *, preempted: bool) -> None:
        """Put sequences in line as one entry."""
        insort(self._entries, WaitingEntry(sequences, preempted=preempted), key=lambda entry: entry.order)
        self.num_sequences += len(sequences)

    def remove(self, entry: WaitingEntry) -> None:
        """Take an entry out: it has its seats, or will never have them."""
        self._entries.remove(entry)
        self.num_sequences -= len(entry.sequences)

    def discard(self, sequence: Sequence) -> None:
        """Take one sequence out of its entry."""
        for entry in self._entries:
            if sequence in entry.sequences:
                entry.sequences.remove(sequence)
                self.num_sequences -= 1
                if not entry.sequences:
                    self._entries.remove(entry)
                return
