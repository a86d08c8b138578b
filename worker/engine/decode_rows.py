"""The generating sequences as rows of arrays: what the next step computes of each, kept in place.

All rows move on by one token in every step, so what a step costs here does not grow with what a row is made
of: a sequence enters its row once, and of its pages only a new one is written. Knows nothing of policy. The
order of rows means nothing, for the last one moves into the place of one that leaves.
"""

from collections import Counter
from typing import TypeVar

import numpy as np

from services.domain.ids import TenantId
from worker.engine.batch import Int32, SampleRow
from worker.engine.page_pool import PageId
from worker.engine.sequence import Sequence

_FEWEST_PAGES = 16
"""Columns of the first page table; it grows when a sequence has more pages."""

Item = TypeVar("Item")


class DecodeRows:
    """One row for each generating sequence. `D` is how many there are."""

    def __init__(self, max_rows: int, *, page_size: int, headroom_pages: int) -> None:
        """Args:
        headroom_pages: Most pages that are left for the growth of one row.
        """
        self._page_size = page_size
        self._headroom_pages = headroom_pages
        self.sequences: list[Sequence] = []
        """[D] in the order of the rows, as all lists and arrays here."""
        self.sample_rows: list[SampleRow] = []
        self.handles: list[int] = []
        self.choices: list[int] = []
        self._outputs: list[list[int]] = []
        self._stops: list[frozenset[int]] = []
        self._asking: dict[Sequence, None] = {}
        self.num_of: Counter[TenantId] = Counter()
        """Rows of each tenant."""
        self.headroom = 0
        """Pages to leave for the growth of all rows."""
        self._num_steps = 0
        # Rows move on together: those that begin a page in the same step do so in each, and share a phase.
        self._of_phase: list[dict[Sequence, None]] = [{} for _ in range(page_size)]
        self._ids = np.zeros(max_rows, np.int32)
        # What grows by one in a step: position, context's length, place among the output tokens, and minus
        # the tokens left until the row must be looked at.
        self._counters = np.zeros((4, max_rows), np.int32)
        self._pages = np.zeros((max_rows, _FEWEST_PAGES), np.int32)
        self._width = 0
        self._row_numbers = np.arange(max_rows + 1, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.sequences)

    # -- views, valid until the rows change -----------------------------------------------------------------

    @property
    def ids(self) -> Int32:
        """[D] each sequence's last token, which the next step computes."""
        return self._ids[: len(self.sequences)]

    @property
    def positions(self) -> Int32:
        """[D] place of that token in its sequence: as many tokens are computed."""
        return self._counters[0, : len(self.sequences)]

    @property
    def context_len(self) -> Int32:
        """[D] tokens in KV once the next step has stored its own."""
        return self._counters[1, : len(self.sequences)]

    @property
    def output_positions(self) -> Int32:
        """[D] place of that token among its choice's output tokens."""
        return self._counters[2, : len(self.sequences)]

    @property
    def query_start(self) -> Int32:
        """[D + 1] 0, 1, 2, ..., D: each row is one token."""
        return self._row_numbers[: len(self.sequences) + 1]

    @property
    def page_table(self) -> Int32:
        """[D, P] page ids; entries past a sequence's pages are 0."""
        return self._pages[: len(self.sequences), : self._width]

    @property
    def at_page_start(self) -> list[Sequence]:
        """Those whose next token is the first of a page: all pages before it are full."""
        return list(self._of_phase[-self._num_steps % self._page_size])

    @property
    def at_next_page_start(self) -> list[Sequence]:
        """As above, once every row has gone on by one token."""
        return list(self._of_phase[-(self._num_steps + 1) % self._page_size])

    @property
    def due_next(self) -> list[Sequence]:
        """Those that must be looked at once they have gone on by one token."""
        due = self._counters[3, : len(self.sequences)]
        if due.max(initial=-2) < -1:
            return []
        return [self.sequences[row] for row in (due >= -1).nonzero()[0].tolist()]

    @property
    def asking(self) -> list[tuple[int, Sequence]]:
        """Those that ask for log-probabilities, with their rows."""
        return [(row, sequence) for sequence in self._asking if (row := sequence.row) is not None]

    # -- commands -------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Give a row to a sequence of which all tokens but the last are computed."""
        row, num_pages, computed = len(self.sequences), len(sequence.pages), sequence.num_computed
        self._of_phase[(computed - self._num_steps) % self._page_size][sequence] = None
        self._ids[row] = sequence.output_ids[-1]
        last = len(sequence.output_ids) - 1
        self._counters[:, row] = computed, computed + 1, last, -sequence.num_free_tokens
        self._fit(num_pages)
        self._pages[row] = 0
        self._pages[row, :num_pages] = sequence.pages
        sequence.row = row
        self.sequences.append(sequence)
        self.sample_rows.append(sequence.sample_row)
        self.handles.append(sequence.request.handle)
        self.choices.append(sequence.choice)
        self._outputs.append(sequence.output_ids)
        self._stops.append(sequence.request.stop.stop_token_ids)
        if sequence.logprobs is not None:
            self._asking[sequence] = None
        self.num_of[sequence.request.tenant] += 1
        self.headroom += self._headroom_of(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence's row away."""
        row, last = sequence.row, len(self.sequences) - 1
        assert row is not None, "only who has a row gives one back"
        del self._of_phase[(int(self._counters[0, row]) - self._num_steps) % self._page_size][sequence]
        self._asking.pop(sequence, None)
        tenant = sequence.request.tenant
        self.num_of[tenant] -= 1
        if not self.num_of[tenant]:
            del self.num_of[tenant]
        self.headroom -= self._headroom_of(sequence)
        self.sequences[last].row = row
        sequence.end_row()
        _take_out(self.sequences, row)
        _take_out(self.sample_rows, row)
        _take_out(self.handles, row)
        _take_out(self.choices, row)
        _take_out(self._outputs, row)
        _take_out(self._stops, row)
        self._ids[row] = self._ids[last]
        self._counters[:, row] = self._counters[:, last]
        self._pages[row] = self._pages[last]
        if len(sequence.pages) == self._width:
            self._width = max((len(other.pages) for other in self.sequences), default=0)

    def add_page(self, sequence: Sequence, page: PageId) -> None:
        """Give a sequence its next page."""
        self.headroom -= self._headroom_of(sequence)
        sequence.pages.append(page)
        self.headroom += self._headroom_of(sequence)
        self._fit(len(sequence.pages))
        self._pages[sequence.row, len(sequence.pages) - 1] = page

    def replace_page(self, sequence: Sequence, index: int, page: PageId) -> None:
        """Let page number `index` of a sequence be another one of the same content."""
        sequence.pages[index] = page
        self._pages[sequence.row, index] = page

    def rename(self, sequence: Sequence) -> None:
        """Take over the handle of the sequence's request."""
        assert sequence.row is not None, "only rows have handles"
        self.handles[sequence.row] = sequence.request.handle

    def advance(self, token_ids: Int32) -> None:
        """Let every row go on to the token that follows its last one. token_ids: [D]."""
        num_rows = len(self.sequences)
        self._ids[:num_rows] = token_ids
        self._counters[:, :num_rows] += 1
        self._num_steps += 1

    def append_tokens(self) -> list[Sequence]:
        """Put the tokens to which the rows have gone on among their outputs.

        Returns:
            Those with a stop id, or with as many tokens as they were free to draw (see `look_again`).
        """
        found = []
        columns = (self.sequences, self._outputs, self.sample_rows, self._stops, self.ids.tolist())
        for sequence, output_ids, sample_row, stops, token_id in zip(*columns, strict=True):
            output_ids.append(token_id)
            sample_row.position += 1
            if token_id in stops:
                found.append(sequence)
        due = self._counters[3, : len(self.sequences)]
        if due.max(initial=-1) >= 0:
            found += [self.sequences[row] for row in (due >= 0).nonzero()[0].tolist()]
        return found

    def look_again(self, sequence: Sequence) -> None:
        """Let a sequence that was looked at draw on, as many tokens as it is free to."""
        self._counters[3, sequence.row] = -sequence.num_free_tokens

    def check(self) -> None:
        """Assert that every row says what its sequence says; for tests."""
        columns = (self.sample_rows, self.handles, self.choices, self._outputs, self._stops)
        assert all(len(column) == len(self.sequences) for column in columns), "a column has other rows"
        for row, sequence in enumerate(self.sequences):
            request, num_output = sequence.request, len(sequence.output_ids)
            last = sequence.num_tokens - 1
            assert sequence.row == row, "a sequence is in another row"
            assert (self.handles[row], self.choices[row]) == (request.handle, sequence.choice)
            assert self.sample_rows[row] is sequence.sample_row
            assert sequence.sample_row.position == num_output
            assert self._outputs[row] is sequence.output_ids
            assert self._ids[row] == sequence.output_ids[-1]
            due = -sequence.num_free_tokens
            assert self._counters[:, row].tolist() == [last, last + 1, num_output - 1, due]
            pages = self.page_table[row].tolist()
            assert pages == sequence.pages + [0] * (self._width - len(sequence.pages)), "a page is elsewhere"
            assert (sequence in self.at_page_start) == (last % self._page_size == 0)
        assert self.headroom == sum(map(self._headroom_of, self.sequences))
        assert self.num_of == Counter(sequence.request.tenant for sequence in self.sequences)

    def _headroom_of(self, sequence: Sequence) -> int:
        return min(sequence.max_pages - len(sequence.pages), self._headroom_pages)

    def _fit(self, num_pages: int) -> None:
        self._width = max(self._width, num_pages)
        missing = self._width - self._pages.shape[1]
        if missing > 0:
            self._pages = np.pad(self._pages, ((0, 0), (0, missing + self._pages.shape[1])))


def _take_out(column: list[Item], row: int) -> None:
    """Take an item out; the last one takes its place."""
    column[row] = column[-1]
    column.pop()
