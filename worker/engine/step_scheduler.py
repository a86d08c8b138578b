"""Decides what each step computes, and takes in what it gave. The policy core of a worker.

`plan` reads commands and makes a consistent plan: ends first, then decode, then starts, then prefill.
`take_in` is the only place where progress is made. Between the two nothing changes, so no page is given away
while a step reads or writes it. `tell` says what came of a step; it may come after `plan_on` has planned the
next one, which computes meanwhile. A device gets it still earlier, by `plan_ahead`: see `run_ahead`.
Reads no clock, knows nothing of threads, devices or streams.
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

from services.domain.capacity import pages_for
from services.domain.errors import over_cap
from services.domain.ids import TenantId
from worker.engine.admission import Admission, Admissions
from worker.engine.batch import Int32, StepResult
from worker.engine.commands import Command
from worker.engine.config import EngineConfig
from worker.engine.intake import Intake
from worker.engine.outputs import Preempted, StepOutputs, StepStats
from worker.engine.page_pool import PagePool
from worker.engine.prefill_order import is_long, prefill_budget, share_prefill
from worker.engine.progress import Progress
from worker.engine.report import StepReport
from worker.engine.run_ahead import feeds_of, plan_ahead, without_ended
from worker.engine.seating import Seating
from worker.engine.sequence import DECODE, PREFILL, Sequence
from worker.engine.step_plan import PrefillRow, StepPlan

IDLE_SLACK_S = 1.0
"""Seconds that a cached page may outstay its time while nothing else happens."""


class StepScheduler:
    """Continuous batching over one page pool."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._seating = Seating(config)
        self._report = StepReport(self._seating.pool)
        self._intake = Intake(config, self._seating, self._report)
        self._admission = Admission(config, self._seating)
        self._progress = Progress(self._seating, self._intake, self._report)
        self._inbox: list[Command] = []
        self._in_flight: StepPlan | None = None
        self._untold: StepPlan | None = None
        self._ahead: StepPlan | None = None
        """The step after that, planned and launched before it is taken in."""
        self._step = 0
        self._granted = 0
        self._waits_for_room = False
        self._long_ran = False
        """Whether a long prefill had a part in the last step."""
        self._at_slice: Mapping[TenantId, tuple[int, float]] = {}

    # -- questions ------------------------------------------------------------------------------------------

    @property
    def pool(self) -> PagePool:
        """The ledger, to be read."""
        return self._seating.pool

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._intake.live)

    @property
    def is_wedged(self) -> bool:
        """Somebody waits for pages or seats although nobody runs: impossible, hence an alarm."""
        return self._waits_for_room and not any(seq.is_started for seq in self._seating.seated)

    @property
    def next_deadline(self) -> float | None:
        """When the nearest limit of a live request runs out, or a cached page has rested for too long."""
        deadline = min((request.deadline for request in self._intake.live), default=float("inf"))
        idle_end = self.pool.next_idle_end
        if idle_end is not None:
            # Late by a second, so that pages which rest since about the same time cost one wake-up.
            deadline = min(deadline, idle_end + IDLE_SLACK_S)
        return None if deadline == float("inf") else deadline

    # -- commands -------------------------------------------------------------------------------------------

    def post(self, command: Command) -> None:
        """Take a command; it acts at the top of the next plan, whatever state its request is in."""
        self._inbox.append(command)

    def plan(self, now: float) -> StepPlan:
        """Decide the next step. Every plan must be taken in and told before the next one is made."""
        assert self._untold is None, "the last step was not told"
        self._begin_plan()
        # 1. Ends: cancelled, finished and expired work leaves before anything is given to anybody.
        inbox, self._inbox = self._inbox, []
        for command in inbox:
            self._intake.handle(command, now)
        self._intake.expire(now)
        has_freed = self.pool.pass_time(now)
        if self.pool.slices.has_bounds:
            self.pool.slices.shrink(self._seating.seated_pages)
        # 2. Decode: everyone that generates gets its page; victims are known before any row exists.
        preempted = self._seating.grow_decodes(now)
        # 3. Starts, within what decode leaves of the step.
        budget = prefill_budget(len(self._seating.decodes), self._config)
        admissions = self._admission.admit(budget, self._step, now)
        preempted += admissions.preempted
        self._tell_admissions(admissions, now)
        for sequence in preempted:
            self._report.tell(Preempted(sequence.request.handle))
        self._waits_for_room = admissions.waits_for_room
        self._at_slice = self._seating.waiting_for_slice
        self._report.slices(self._at_slice, now)
        # 4. Rows: all decodes, then prefill's shares.
        started = {seq: seq.num_computed for seq in self._seating.prefilling if seq.state is PREFILL}
        rows = share_prefill(started, budget, self._config, long_ran=self._long_ran)
        self._note_long(rows, budget)
        num_prefill = sum(row.num_tokens for row in rows)
        has_outputs = has_freed or not self._report.is_empty
        return self._let_fly(rows, num_prefill, preempted, has_outputs)

    def plan_on(self, now: float) -> StepPlan | None:
        """Plan the next step before the last one is told, where it can only be every row's next token.

        Nobody ends, starts or yields in such a step, so planning it has nothing to tell: what `tell` says
        afterwards is of the last step alone.

        Returns:
            None where anything else may be due: then `tell` comes first, and `plan`.
        """
        seating = self._seating
        is_mere_decode = 0 < len(seating.decodes) == len(seating.seated) and not seating.line
        if not is_mere_decode or self._report.has_events or self._is_asked(now):
            return None
        self.pool.pass_time(now)
        for sequence in seating.growing():
            # What others have got by then they keep: `plan` finds that they need nothing.
            if self.pool.can_take(sequence.request.tenant, 1) is not None:
                return None
            seating.grow(sequence, now)
        self._begin_plan()
        self._long_ran = False
        return self._let_fly()

    def take_in(self, plan: StepPlan, result: StepResult | None, now: float) -> None:
        """Take in what a plan's step drew.

        Args:
            result: Rows parallel to the plan's sampling rows; None for a plan without rows.
        """
        assert plan is self._in_flight, "only the plan in flight can be taken in"
        assert self._untold is None, "the step before was not told"
        self._in_flight, self._ahead, self._untold = self._ahead, None, plan
        if plan.num_rows:
            assert result is not None, "a plan with rows needs a result"
            if plan.rows is not None:
                plan, result = without_ended(plan, result)
            self._progress.make(plan, result, now)

    def tell(self, plan: StepPlan, now: float, step_s: float = 0.0) -> StepOutputs:
        """Return all that there is to tell of a step that was taken in. It changes no row and no page.

        Args:
            now: When it was taken in.
            step_s: Seconds the step took, for the statistics.
        """
        assert plan is self._untold, "only the step taken in last can be told, once"
        self._untold = None
        return self._report.close(self._stats(plan, step_s, now))

    def plan_ahead(self, now: float) -> tuple[StepPlan, Int32] | None:
        """Decide the step after the one in flight before that is taken in, if it can only be one thing.

        Returns:
            The plan and `Batch.feeds`; None where the next step must wait for what this one draws, or for
            anything that was asked for.
        """
        in_flight = self._in_flight
        assert in_flight is not None, "a step is in flight"
        assert self._ahead is None, "one step runs ahead, not two"
        may_start = len(self._seating.line) and not self._admission.is_full()
        if may_start or self._is_asked(now):
            return None
        ahead = plan_ahead(self._seating, in_flight, self._config, now, long_ran=self._long_ran)
        if ahead is None:
            return None
        self._step += 1
        self._ahead = ahead
        self._note_long(ahead.prefills, prefill_budget(ahead.num_decodes, self._config))
        return ahead, feeds_of(in_flight, ahead.generating)

    def apply(
        self, plan: StepPlan, result: StepResult | None, now: float, step_s: float = 0.0
    ) -> StepOutputs:
        """Take a step in and tell it at once."""
        self.take_in(plan, result, now)
        return self.tell(plan, now, step_s)

    # -- parts of plan --------------------------------------------------------------------------------------

    def _is_asked(self, now: float) -> bool:
        """Say whether a command, a limit or the end of a page is due, which only `plan` looks after."""
        idle_end = self.pool.next_idle_end
        is_idle_over = idle_end is not None and idle_end <= now
        return bool(self._inbox) or is_idle_over or self._intake.may_expire(now)

    def _note_long(self, rows: SequenceOf[PrefillRow], budget: int) -> None:
        self._long_ran = any(is_long(row.sequence, budget, self._config.page_size) for row in rows)

    def _begin_plan(self) -> None:
        assert self._in_flight is None, "the last plan was not taken in"
        self._step += 1

    def _let_fly(
        self,
        prefills: SequenceOf[PrefillRow] = (),
        num_prefill: int = 0,
        preempted: SequenceOf[Sequence] = (),
        has_outputs: bool = False,
    ) -> StepPlan:
        """Make the plan of all decode rows and these prefills; from now on it is in flight."""
        decodes = self._seating.decodes
        self._in_flight = StepPlan(
            self._step, decodes, len(decodes), tuple(prefills), num_prefill, tuple(preempted), has_outputs
        )
        return self._in_flight

    def _tell_admissions(self, admissions: Admissions, now: float) -> None:
        for sequence, cached_tokens in admissions.started:
            request = sequence.request
            if request.started_at is None:
                request.started_at = now
                request.cached_tokens = min(cached_tokens, len(request.prompt_ids))
                self._report.first_start(request, request.cached_tokens)
            elif sequence.preemptions:
                self._report.prefix_tokens["resumed"] += cached_tokens
        for entry in admissions.impossible:
            request = entry.request
            cap = self.pool.slices.cap_of(request.tenant)
            self._intake.end_request(request, now, error=over_cap(entry.max_pages, cap, request.usage))

    # -- parts of apply -------------------------------------------------------------------------------------

    def _stats(self, plan: StepPlan, step_s: float, now: float) -> StepStats:
        seating, pool = self._seating, self.pool
        states: dict[str, int] = {DECODE: len(seating.decodes)} if seating.decodes else {}
        for seq in seating.prefilling:
            states[seq.state] = states.get(seq.state, 0) + 1
        waiting_tokens = 0
        oldest = now
        for entry in seating.line:
            for seq in entry.sequences:
                states[seq.state] = states.get(seq.state, 0) + 1
                waiting_tokens += seq.num_tokens
            oldest = min(oldest, entry.request.submitted_at)
        transitions, prefix_tokens, failures, unknown_cancels = self._report.step_counters()
        startable = max(0, pool.num_available - seating.headroom())
        return StepStats(
            step=plan.step,
            step_s=step_s,
            num_rows=plan.num_rows,
            num_prefill_tokens=plan.num_prefill_tokens,
            num_decode_tokens=plan.num_decodes,
            waiting=seating.line.num_sequences,
            running=len(seating.seated),
            states=states,
            live_requests=len(self._intake.live),
            waiting_tokens=waiting_tokens,
            oldest_waiting_s=now - oldest,
            free_pages=pool.num_free,
            cached_pages=pool.num_cached,
            held_pages=pool.num_held,
            preemptions=len(plan.preempted),
            allocation_failures=failures,
            transitions=transitions,
            prefix_tokens=prefix_tokens,
            unknown_cancels=unknown_cancels,
            granted=self._grant(startable),
            taken=self._intake.num_taken,
            startable_pages=startable,
            draining=self._intake.is_draining,
        )

    def _grant(self, startable_pages: int) -> int:
        """Return the cumulative grants: one per Submit taken and one per free seat, when there is room.

        None is added while a preempted sequence waits, or anybody for room, or when a step's prefill would
        not find pages. Who waits for its tenant's slice takes no seat from others.
        """
        config = self._config
        waiting = [entry for entry in self._seating.line if entry.request.tenant not in self._at_slice]
        has_preempted = any(entry.preempted for entry in waiting)
        needed = min(pages_for(config.max_prefill_tokens, config.page_size), self.pool.num_total // 8)
        is_short = self._waits_for_room or has_preempted or startable_pages < needed
        if not (is_short or self._intake.is_draining):
            seats = self._seating.num_free_seats - sum(len(entry.sequences) for entry in waiting)
            self._granted = max(self._granted, self._intake.num_taken + max(0, seats))
        return self._granted
