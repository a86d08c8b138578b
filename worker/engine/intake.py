"""Takes commands into the engine and ends requests: the one path in and the one path out.

Knows the registry of live requests and what each one holds; knows nothing of steps or rows.
"""

from math import inf

from services.domain.errors import Draining, ErrorDetail, QueueFull, ServeError, StaleAttempt
from services.domain.generation import FinishReason
from worker.engine.commands import (
    Cancel,
    Command,
    Drain,
    FinishChoice,
    SetIdleTtl,
    SetRanks,
    SetSlices,
    SnapshotKv,
    Submit,
)
from worker.engine.config import EngineConfig
from worker.engine.live_requests import Attaches, LiveRequests, Stale, Supersedes
from worker.engine.outputs import Accepted, ChoiceEnded, Refused, Started
from worker.engine.report import StepReport
from worker.engine.request import Request
from worker.engine.seating import Seating
from worker.engine.sequence import Sequence, SequenceState
from worker.engine.validation import find_fault


class Intake:
    """Requests from their Submit to their one end."""

    def __init__(self, config: EngineConfig, seating: Seating, report: StepReport) -> None:
        self._config = config
        self._seating = seating
        self._report = report
        self.live = LiveRequests()
        self._no_end_before = inf
        """No limit runs out earlier: limits of a live request only fall away, so it is looked at rarely."""
        self.is_draining = False
        self.num_taken = 0
        """Submits that were not attachments: each has used up one grant."""

    def handle(self, command: Command, now: float) -> None:
        """Apply one command. Nothing is in flight."""
        match command:
            case Submit():
                self._submit(command, now)
            case Cancel(handle):
                self._cancel(handle, now)
            case FinishChoice(handle, choice, reason):
                self._finish_choice(handle, choice, reason, now)
            case SetSlices():
                self._seating.pool.slices.replace(command, self._seating.seated_pages)
            case SetIdleTtl(idle_ttl_s):
                self._seating.pool.idle_ttl_s = idle_ttl_s
            case SetRanks(over_share):
                self._seating.ranks = dict(over_share)
            case Drain():
                self.is_draining = True
            case SnapshotKv(reply):
                reply(self._seating.pool.snapshot())

    def may_expire(self, now: float) -> bool:
        """Say whether a limit may have run out; False means that none has."""
        return now >= self._no_end_before

    def expire(self, now: float) -> None:
        """End every request of which a limit has run out, before anything is computed for it."""
        if not self.may_expire(now):
            return
        for request in [request for request in self.live if request.deadline <= now]:
            self.end_request(request, now, error=request.expiry())
        self._no_end_before = min((request.deadline for request in self.live), default=inf)

    def end_sequence(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """End one choice well; the request ends with its last one."""
        self._seating.release(sequence, now)
        sequence.state = SequenceState.FINISHED
        sequence.finish_reason = reason
        request = sequence.request
        num_output = len(sequence.output_ids)
        self._report.tell(ChoiceEnded(request.handle, sequence.choice, reason, num_output))
        if not request.live_sequences:
            self.end_request(request, now)

    def end_request(
        self, request: Request, now: float, *, error: ServeError | None = None, cancelled: bool = False
    ) -> None:
        """End a request from any state: everything it holds is released here."""
        for sequence in request.sequences:
            self._seating.release(sequence, now)
            sequence.state = SequenceState.FINISHED
        assert request.held_pages == 0, "a request that ends holds nothing"
        self.live.remove(request)
        self._report.tell(request.ended(now, error=error, cancelled=cancelled))

    def _submit(self, submit: Submit, now: float) -> None:
        standing = self.live.classify(submit.key)
        match standing:
            case Attaches(request):
                self._attach(request, submit)
                return
            case Stale(newest):
                self.num_taken += 1
                error = StaleAttempt(f"attempt {submit.key.attempt} is over, {newest} has been seen")
                self._report.tell(Refused(submit.handle, submit.key, error))
                return
            case Supersedes(older):
                error = StaleAttempt("a newer attempt has taken its place", ErrorDetail(usage=older.usage))
                self.end_request(older, now, error=error)
        self.num_taken += 1
        refusal = self._refusal(submit)
        if refusal is not None:
            self._report.tell(Refused(submit.handle, submit.key, refusal))
            return
        request = Request(submit, arrival=self.num_taken, now=now, page_size=self._config.page_size)
        self.live.add(request)
        self._no_end_before = min(self._no_end_before, request.deadline)
        self._report.tell(Accepted(request.handle, request.key))
        self._take_over_ends(request, submit, now)
        waiting = request.live_sequences
        if waiting:
            self._seating.line.add(waiting, preempted=False)

    def _refusal(self, submit: Submit) -> ServeError | None:
        if self.is_draining:
            return Draining("the worker is draining")
        fault = find_fault(submit, self._config, self._seating.pool.slices.cap_of(submit.tenant))
        if fault is not None:
            return fault
        if len(self._seating.line) >= self._config.max_waiting:
            limit = self._config.max_waiting
            detail = ErrorDetail(retry_after_s=1.0, quota="worker/waiting", metadata={"limit": str(limit)})
            return QueueFull(f"{limit} requests are waiting on this worker", detail)
        return None

    def _take_over_ends(self, request: Request, submit: Submit, now: float) -> None:
        """End the choices that an earlier attempt has finished, or whose last token it has given."""
        finished = submit.finished or {}
        for sequence in request.sequences:
            # One without output ends when its prompt is computed.
            reached = finish_reason(sequence) if sequence.output_ids else None
            reason = finished.get(sequence.choice) or reached
            if reason is not None:
                self.end_sequence(sequence, reason, now)

    def _attach(self, request: Request, submit: Submit) -> None:
        """Let outputs go to a new handle, from where its side has got to."""
        self.live.rename(request, submit.handle)
        for sequence in request.sequences:
            if sequence.row is not None:
                self._seating.decodes.rename(sequence)
        self._report.tell(Accepted(request.handle, request.key))
        if request.started_at is not None:
            self._report.tell(Started(request.handle, request.key, request.cached_tokens))
        for sequence in request.sequences:
            self._report.prompt_scored(sequence, 1)
            received = submit.output_ids[sequence.choice] if sequence.choice < len(submit.output_ids) else ()
            self._report.repeat(sequence, len(received))
            if sequence.finish_reason is not None:
                num_output = len(sequence.output_ids)
                ended = ChoiceEnded(request.handle, sequence.choice, sequence.finish_reason, num_output)
                self._report.tell(ended)

    def _cancel(self, handle: int, now: float) -> None:
        request = self.live.get(handle)
        if request is None:
            # Cancel races with the end, and may come twice: harmless, but counted.
            self._report.unknown_cancels += 1
            return
        self.end_request(request, now, cancelled=True)

    def _finish_choice(self, handle: int, choice: int, reason: FinishReason, now: float) -> None:
        request = self.live.get(handle)
        if request is None or not 0 <= choice < len(request.sequences):
            self._report.unknown_cancels += 1
            return
        sequence = request.sequences[choice]
        if sequence.state is not SequenceState.FINISHED:
            self.end_sequence(sequence, reason, now)


def finish_reason(sequence: Sequence) -> FinishReason | None:
    """Say whether the last token ended the choice. The context's length is checked at Submit."""
    stop = sequence.request.stop
    output = sequence.output_ids
    if output and output[-1] in stop.stop_token_ids and len(output) > stop.min_output_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(output) >= stop.max_output_tokens else None
