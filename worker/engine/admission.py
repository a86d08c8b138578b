"""Chooses who takes a seat in this step: bands in order, bounded bypass of whoever waits for room.

Those that wait for their own tenant's slice or for another's prefix block nobody. A group (n > 1) gets its
seats all at once or not at all. Knows nothing of decode or of what rows a step has.
"""

from dataclasses import dataclass, field

from services.domain.capacity import pages_for
from services.domain.ids import TenantId
from worker.engine.config import EngineConfig
from worker.engine.page_pool import OverSlice, PoolShort
from worker.engine.preemption import choose_victim, may_be_taken_for
from worker.engine.prefill_order import is_long
from worker.engine.seating import Seating, SequenceStarted, StartOutcome
from worker.engine.sequence import PREFILL, PREFIX_WAIT, Sequence
from worker.engine.waiting import WaitingEntry


@dataclass(slots=True)
class Admissions:
    """Who started in this step, and who had to yield for it."""

    started: list[tuple[Sequence, int]] = field(default_factory=list)
    """With the tokens found in the cache."""
    preempted: list[Sequence] = field(default_factory=list)
    impossible: list[WaitingEntry] = field(default_factory=list)
    """Their tenant's cap has shrunk below what they need in the worst case."""
    waits_for_room: bool = False
    """Somebody could have a seat but for pages or seats."""


class Admission:
    """Policy of starting sequences."""

    def __init__(self, config: EngineConfig, seating: Seating) -> None:
        self._config = config
        self._seating = seating

    def is_full(self) -> bool:
        """Say whether nobody in line can get a seat, not even that of somebody who has to yield it."""
        seating = self._seating
        head = next(iter(seating.line), None)
        if head is None or seating.num_free_seats > 0:
            return False
        is_highest = all(seq.request.band <= head.request.band for seq in seating.seated)
        return is_highest and not any(over > 0.0 for over in seating.ranks.values())

    def admit(self, budget: int, step: int, now: float) -> Admissions:
        """Start whoever may start before this step. `budget`: prefill tokens of the step."""
        result = Admissions()
        if not self._seating.prefilling and not self._seating.line:
            return result
        blocked: list[WaitingEntry] = []
        tenants_at_slice: set[TenantId] = set()
        if not self._start_seated(result, step, now) or self.is_full():
            result.waits_for_room = True
            return result
        num_examined = 0
        for entry in list(self._seating.line):
            if num_examined == self._config.admission_window:
                break
            if entry.request.tenant in tenants_at_slice or not self._has_turn(entry, budget):
                continue
            outcome = self._start_entry(entry, step, now)
            if isinstance(outcome, PoolShort):
                outcome = self._start_over_others(entry, result, step, now)
            if isinstance(outcome, OverSlice):
                tenants_at_slice.add(entry.request.tenant)
                if entry.max_pages > self._seating.pool.slices.cap_of(entry.request.tenant):
                    result.impossible.append(entry)
                continue
            num_examined += 1
            if isinstance(outcome, SequenceStarted):
                result.started.append((entry.sequences[0], outcome.cached_tokens))
                for passed in blocked:
                    passed.bypassed += 1
            elif isinstance(outcome, PoolShort):
                result.waits_for_room = True
                blocked.append(entry)
                # Whoever was passed often enough is passed no more: what becomes free collects for it.
                if entry.bypassed >= self._config.max_bypass:
                    break
        return result

    def _start_seated(self, result: Admissions, step: int, now: float) -> bool:
        """Start members of seated groups; return False when one lacks pages, so that nobody passes it."""
        for sequence in self._seating.prefilling:
            if sequence.state is PREFIX_WAIT:
                outcome = self._seating.start(sequence, step, now)
                if isinstance(outcome, SequenceStarted):
                    result.started.append((sequence, outcome.cached_tokens))
                elif isinstance(outcome, PoolShort):
                    return False
        return True

    def _has_turn(self, entry: WaitingEntry, budget: int) -> bool:
        """Say whether its prefill may join those that are started.

        Short ones (done in one step) join while the short ones together fill less than a step; of long ones
        there is a fixed number. So started prefills hold few pages without progress, and a short prompt
        starts beside any number of long ones.
        """
        started = [seq for seq in self._seating.prefilling if seq.state is PREFILL]
        own = entry.sequences[0].num_tokens
        if own > budget:
            cached = self._seating.pool.match(entry.sequences[0].reusable_pages())
            own -= len(cached) * self._config.page_size
        if own <= budget:
            page_size = self._config.page_size
            short = [seq for seq in started if not is_long(seq, budget, page_size)]
            return sum(seq.num_tokens - seq.num_computed for seq in short) < budget
        num_long = sum(seq.num_tokens - seq.num_computed > budget for seq in started)
        return num_long < self._config.max_long_prefills

    def _start_entry(self, entry: WaitingEntry, step: int, now: float) -> StartOutcome:
        """Start an entry's first sequence and seat the others, or change nothing."""
        seating = self._seating
        first, *others = entry.sequences
        slices = seating.pool.slices
        if not slices.may_start(entry.request.tenant, entry.max_pages):
            return OverSlice(max(1, entry.max_pages - slices.slice_of(entry.request.tenant)))
        if len(entry.sequences) > seating.num_free_seats:
            return PoolShort(0)
        if others:
            refusal = self._group_refusal(entry)
            if refusal is not None:
                return refusal
        outcome = seating.start(first, step, now)
        if isinstance(outcome, SequenceStarted):
            seating.line.remove(entry)
            for sequence in others:
                seating.seat_without_pages(sequence)
        return outcome

    def _group_refusal(self, entry: WaitingEntry) -> PoolShort | OverSlice | None:
        """Say what stands against all of a group's prompts being in the pool at once."""
        first, *others = entry.sequences
        shared = self._seating.pool.match(first.reusable_pages())
        page_size = self._config.page_size
        num_new = pages_for(first.num_tokens, page_size) - len(shared)
        # The others take the prompt's full pages from the first one, but for the page of the last token.
        num_common = 0 if first.request.cache_opt_out else (len(first.prompt_ids) - 1) // page_size
        num_new += sum(pages_for(seq.num_tokens, page_size) - num_common for seq in others)
        return self._seating.pool.can_take(first.request.tenant, num_new, shared)

    def _start_over_others(
        self, entry: WaitingEntry, result: Admissions, step: int, now: float
    ) -> StartOutcome:
        """Start an entry by preempting those that have to yield to it, if they hold enough for it."""
        seating = self._seating
        victims = self._victims(entry)
        need = sum(pages_for(seq.num_tokens, self._config.page_size) for seq in entry.sequences)
        room = seating.pool.num_available - seating.headroom() + sum(len(seq.pages) for seq in victims)
        if need > room or len(entry.sequences) > seating.num_free_seats + len(victims):
            return PoolShort(0)
        outcome: StartOutcome = PoolShort(0)
        while isinstance(outcome, PoolShort):
            victim = choose_victim(victims, seating.ranks)
            if victim is None:
                return outcome
            seating.preempt(victim, now)
            result.preempted.append(victim)
            outcome = self._start_entry(entry, step, now)
        return outcome

    def _victims(self, entry: WaitingEntry) -> list[Sequence]:
        """Return the sequences that have to yield to an entry."""
        seating = self._seating
        return [
            seq
            for seq in seating.seated
            if seq.is_started
            and not seq.reserved
            and may_be_taken_for(seq.request, entry.request, seating.ranks)
        ]
