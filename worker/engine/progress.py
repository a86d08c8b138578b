"""Takes in what a step has drawn: the only place where a sequence makes progress.

Knows rows and results; knows nothing of why a row was in the step.
"""

from services.domain.capacity import pages_for
from services.domain.errors import BadRow, ErrorDetail
from services.domain.generation import FinishReason
from worker.engine.batch import StepResult
from worker.engine.intake import Intake, finish_reason
from worker.engine.report import StepReport
from worker.engine.seating import Seating
from worker.engine.sequence import PREFILL, Sequence, SequenceState
from worker.engine.step_plan import StepPlan


class Progress:
    """Results of one worker's steps, applied to its sequences."""

    def __init__(self, seating: Seating, intake: Intake, report: StepReport) -> None:
        self._seating = seating
        self._intake = intake
        self._report = report

    def make(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Apply a plan's result. Rows of `result`: the decodes, then of each prefill the scored ones and
        the one that samples."""
        # Sequences whose prefill ends here get a row of their own: those that have one come first.
        if plan.num_decodes:
            self._apply_decodes(plan, result, now)
        self._apply_prefills(plan, result, now)

    def _apply_decodes(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Move all decode rows on by one token. What is done here for each row is every step's price."""
        decodes, num_rows = plan.decodes, plan.num_decodes
        logprobs = [(seq, float(result.logprobs[row]), result.top[row]) for row, seq in decodes.asking]
        is_bad = result.failed[:num_rows]
        bad = [decodes.sequences[row] for row in is_bad.nonzero()[0].tolist()] if is_bad.any() else []
        if num_begun := len(decodes.at_page_start):
            self._seating.pool.transitions["decode"] += num_begun
        decodes.advance(result.token_ids[:num_rows])
        for seq in bad:
            self._end_bad(seq, now)
        found = decodes.append_tokens()
        asked = [
            (seq.row, *seq.add_logprob(logprob, top)) for seq, logprob, top in logprobs if seq.row is not None
        ]
        self._report.decoded(decodes, asked)
        for seq in decodes.at_page_start:
            self._seating.publish(seq)
        for seq in found:
            self._look_at(seq, now)

    def _apply_prefills(self, plan: StepPlan, result: StepResult, now: float) -> None:
        index = plan.num_decodes
        for seq, start, num_tokens, samples, num_scored in plan.prefills:
            first, drawn = index, index + num_scored
            index = drawn + samples
            if seq.state is not PREFILL:
                # A sibling's bad row has ended its request in this very step.
                continue
            if (samples and result.failed[drawn]) or (num_scored and result.failed[first:drawn].any()):
                self._end_bad(seq, now)
                continue
            if num_scored:
                self._take_scores(seq, result, first, drawn)
            self._advance(seq, start, num_tokens)
            if samples:
                self._take_first(seq, drawn, result, now)
            elif seq.num_computed == seq.num_tokens:
                # No output was asked for: the prompt is all there is to compute.
                self._intake.end_sequence(seq, FinishReason.LENGTH, now)

    def _end_bad(self, seq: Sequence, now: float) -> None:
        """End the request of a row whose logits are of no use.

        Its keys and values may be as bad: nothing of this step is published, and what earlier chunks have
        published is withdrawn.
        """
        if seq.state is not SequenceState.FINISHED:
            self._seating.withdraw(seq)
            usage = ErrorDetail(usage=seq.request.usage)
            error = BadRow("the model produced no usable distribution", usage)
            self._intake.end_request(seq.request, now, error=error)

    def _advance(self, seq: Sequence, start: int, num_tokens: int) -> None:
        """Record that a chunk's tokens are computed, and publish the pages they fill."""
        end = start + num_tokens
        seq.num_computed = end
        page_size = self._seating.pool.page_size
        num_entered = pages_for(end, page_size) - pages_for(start, page_size)
        if num_entered:
            self._seating.pool.transitions["prefill"] += num_entered
        fresh = min(end, len(seq.prompt_ids)) - max(start, seq.high_water)
        self._report.prompt_computed(seq.request.tenant, fresh)
        if end // page_size > seq.num_published:
            self._seating.publish(seq)

    def _take_scores(self, seq: Sequence, result: StepResult, first: int, end: int) -> None:
        """Take the scores that rows `first` to `end` gave of the prompt's next tokens, and tell them."""
        scores = seq.scores
        assert scores is not None, "only where they were asked for"
        position = scores.num_scored + 1
        tops = [top for top in result.top[first:end] if top is not None]
        scores.add(result.logprobs[first:end].tolist(), tops)
        self._report.prompt_scored(seq, position)

    def _take_first(self, seq: Sequence, drawn: int, result: StepResult, now: float) -> None:
        """Take the token that ends a prefill; from here on the sequence generates."""
        request = seq.request
        if request.first_token_at is None:
            request.first_token_at = now
        seq.add_token(int(result.token_ids[drawn]))
        logprob = top = None
        if seq.logprobs is not None:
            logprob, top = seq.add_logprob(float(result.logprobs[drawn]), result.top[drawn])
        self._report.token(seq, logprob, top)
        self._seating.begin_decode(seq)
        self._look_at(seq, now)

    def _look_at(self, seq: Sequence, now: float) -> None:
        """End a choice that has its last token; one that has its minimum may draw stop ids from now on."""
        if seq.row is None:
            return
        reason = finish_reason(seq)
        if reason is not None:
            self._intake.end_sequence(seq, reason, now)
        else:
            seq.allow_stops()
            self._seating.decodes.look_again(seq)
