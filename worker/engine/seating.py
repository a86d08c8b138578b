"""Who has a seat and which pages: the only place that moves sequences in and out of the running set.

It starts, grows, preempts and releases; it does not choose who is started (admission does) or what is
computed.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from services.domain.block_hash import BLOCK_SIZE
from services.domain.capacity import pages_for
from services.domain.ids import TenantId
from worker.engine.config import EngineConfig
from worker.engine.decode_rows import DecodeRows
from worker.engine.kv_events import Stored
from worker.engine.page_pool import OverSlice, PagePool, PoolShort, Taken
from worker.engine.preemption import choose_victim
from worker.engine.prefix_wait import PrefixLeaders
from worker.engine.sequence import Sequence, SequenceState
from worker.engine.waiting import WaitingLine


@dataclass(frozen=True, slots=True)
class SequenceStarted:
    """It has its pages; `cached_tokens` of its tokens are already in them."""

    cached_tokens: int


@dataclass(frozen=True, slots=True)
class WaitsForPrefix:
    """Another sequence is computing what it needs."""


StartOutcome = SequenceStarted | WaitsForPrefix | PoolShort | OverSlice


class Seating:
    """Seats, pages and the line of one worker."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.pool = PagePool(config.num_pages, page_size=config.page_size)
        self.leaders = PrefixLeaders(config.max_prefix_wait_steps)
        self.line = WaitingLine()
        self.seated: list[Sequence] = []
        """In the order in which they took their seats."""
        self.decodes = DecodeRows(
            config.max_sequences, page_size=config.page_size, headroom_pages=config.headroom_pages
        )
        """Those of them that generate."""
        self.ranks: Mapping[TenantId, float] = {}

    @property
    def seated_pages(self) -> Counter[TenantId]:
        """Worst case of each tenant's sequences with a seat, summed."""
        pages: Counter[TenantId] = Counter()
        for sequence in self.seated:
            pages[sequence.request.tenant] += sequence.max_pages
        return pages

    @property
    def waiting_for_slice(self) -> dict[TenantId, tuple[int, float]]:
        """Of tenants whose first waiting entry does not fit into their slice now: its worst case, and since
        when its request is here. Nobody while there is no seat: then pages would lie idle."""
        found: dict[TenantId, tuple[int, float]] = {}
        slices = self.pool.slices
        if not slices.tenants or self.num_free_seats <= 0:
            return found
        seen: set[TenantId] = set()
        for entry in self.line:
            tenant = entry.request.tenant
            if tenant not in slices.tenants or tenant in seen:
                continue
            seen.add(tenant)
            if entry.max_pages + self.pool.held_by(tenant) > slices.slice_of(tenant):
                found[tenant] = (entry.max_pages, entry.request.submitted_at)
        return found

    @property
    def num_free_seats(self) -> int:
        return self._config.max_sequences - len(self.seated)

    @property
    def prefilling(self) -> list[Sequence]:
        """Those with a seat that do not generate yet, also when they wait for their prefix."""
        if len(self.seated) == len(self.decodes):
            return []
        return [sequence for sequence in self.seated if sequence.row is None]

    def headroom(self, starting: Sequence | None = None) -> int:
        """Return the pages to leave for the growth of the running sequences and of one that starts."""
        most = self._config.headroom_pages
        pages = self.decodes.headroom
        for sequence in self.prefilling:
            # One without pages has not started; one that holds its worst case has nothing left to grow.
            if sequence.pages and sequence is not starting:
                left = sequence.max_pages - len(sequence.pages)
                pages += left if left < most else most
        if starting is not None and not self._must_reserve(starting):
            room = starting.max_pages - pages_for(starting.num_tokens, self.pool.page_size)
            pages += min(self._config.headroom_pages, room)
        return pages

    def start(self, sequence: Sequence, step: int, now: float) -> StartOutcome:
        """Give a sequence all pages of its tokens (or of its worst case), cached ones first, or nothing."""
        names = sequence.reusable_pages()
        shared = self.pool.match(names)
        if len(shared) < len(names) and self.leaders.should_wait(sequence, names[len(shared)], step):
            return WaitsForPrefix()
        reserve = self._must_reserve(sequence)
        page_size = self.pool.page_size
        num_pages = sequence.max_pages if reserve else pages_for(sequence.num_tokens, page_size)
        num_new = num_pages - len(shared)
        tenant = sequence.request.tenant
        refusal = self.pool.can_take(tenant, num_new + self.headroom(sequence), shared)
        if isinstance(refusal, PoolShort):
            return refusal
        taken = self.pool.take(tenant, num_new, shared)
        if not isinstance(taken, Taken):
            return taken
        sequence.pages.extend(shared)
        sequence.pages.extend(taken.new_pages)
        sequence.num_computed = len(shared) * page_size
        sequence.num_published = sequence.num_found = len(shared)
        sequence.high_water = max(sequence.high_water, sequence.num_computed)
        sequence.reserved = reserve
        sequence.skipped_steps = 0
        sequence.prefix_watch = None
        sequence.request.change_pages(num_pages, now)
        if not sequence.is_seated:
            self.seated.append(sequence)
        sequence.state = SequenceState.PREFILL
        if not sequence.request.cache_opt_out:
            self.leaders.lead(sequence, sequence.page_names(sequence.num_tokens // page_size)[len(shared) :])
        return SequenceStarted(sequence.num_computed)

    def seat_without_pages(self, sequence: Sequence) -> None:
        """Keep a seat for a member of a group until it can start."""
        self.seated.append(sequence)
        sequence.state = SequenceState.PREFIX_WAIT

    def grow(self, sequence: Sequence, now: float) -> list[Sequence]:
        """Give a sequence that generates, or will in the next step, the page of its next token.

        Returns:
            Who was preempted for it; the sequence itself may be: then it has no page and no seat.
        """
        victims: list[Sequence] = []
        while sequence.is_started:
            taken = self.pool.take(sequence.request.tenant, 1)
            if isinstance(taken, Taken):
                (page,) = taken.new_pages
                if sequence.row is None:
                    sequence.pages.append(page)
                else:
                    self.decodes.add_page(sequence, page)
                sequence.request.change_pages(1, now)
                break
            # A tenant at its slice can only be helped by its own sequences. The sequence itself is always
            # among the candidates: one that holds its worst case never needs a page.
            candidates = (
                [seq for seq in self.seated if seq.request.tenant == sequence.request.tenant]
                if isinstance(taken, OverSlice)
                else self.seated
            )
            victim = choose_victim(candidates, self.ranks)
            assert victim is not None, "whoever needs a page can be a victim"
            self.preempt(victim, now)
            victims.append(victim)
        return victims

    def growing(self) -> list[Sequence]:
        """Return the generating sequences whose next token needs a page, the most important first."""
        page_size = self._config.page_size
        starting = self.decodes.at_page_start
        growing = [seq for seq in starting if len(seq.pages) * page_size <= seq.num_computed]
        if len(growing) > 1:
            growing.sort(key=lambda seq: (seq.request.band, seq.request.arrival))
        return growing

    def grow_decodes(self, now: float) -> list[Sequence]:
        """Give each generating sequence the page of its next token; return who was preempted for it."""
        preempted: list[Sequence] = []
        for sequence in self.growing():
            if sequence.is_started:
                preempted += self.grow(sequence, now)
        return preempted

    def begin_decode(self, sequence: Sequence) -> None:
        """Let a sequence generate: all its tokens but the one just drawn are computed."""
        sequence.state = SequenceState.DECODE
        self.leaders.resign(sequence)
        self.decodes.add(sequence)

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Take a started sequence's pages and seat; it waits to be computed again from its tokens."""
        self.release(sequence, now)
        sequence.state = SequenceState.PREEMPTED
        sequence.preemptions += 1
        sequence.request.preemptions += 1
        self.line.add([sequence], preempted=True)

    def release(self, sequence: Sequence, now: float) -> None:
        """Take back all that a sequence holds, from any state; full published pages stay as cached."""
        if sequence.state is SequenceState.FINISHED:
            return
        if sequence.is_seated:
            self.seated.remove(sequence)
        else:
            self.line.discard(sequence)
        if sequence.row is not None:
            self.decodes.remove(sequence)
        self.leaders.resign(sequence)
        sequence.request.computed_tokens += sequence.num_computed - sequence.num_found * self.pool.page_size
        sequence.high_water = max(sequence.high_water, sequence.num_computed)
        if sequence.pages:
            self.pool.release(sequence.request.tenant, sequence.pages)
            sequence.request.change_pages(-len(sequence.pages), now)
            del sequence.pages[:]
        sequence.num_computed = 0
        sequence.num_published = sequence.num_found = 0
        sequence.reserved = False

    def publish(self, sequence: Sequence) -> None:
        """Publish the pages which the finished step completed."""
        request = sequence.request
        if request.cache_opt_out:
            return
        num_full = sequence.num_computed // self.pool.page_size
        per_page = self.pool.page_size // BLOCK_SIZE
        hashes = sequence.hashes(num_full * per_page)
        for index in range(sequence.num_published, num_full):
            blocks = [
                Stored(hashes[depth], hashes[depth - 1] if depth else None, request.tenant, depth)
                for depth in range(index * per_page, (index + 1) * per_page)
            ]
            page = self.pool.publish(sequence.pages[index], blocks)
            if sequence.row is None:
                sequence.pages[index] = page
            elif page != sequence.pages[index]:
                self.decodes.replace_page(sequence, index, page)
        sequence.num_published = num_full

    def withdraw(self, sequence: Sequence) -> None:
        """Let nobody reuse what the sequence has published since its start; what it found stays."""
        own = sequence.pages[sequence.num_found : sequence.num_published]
        self.pool.withdraw(own)

    def _must_reserve(self, sequence: Sequence) -> bool:
        return sequence.preemptions >= self._config.max_preemptions
