"""The one bridge between the event loop and the step loop's thread.

Commands go in through the step loop's own queue; one `StepOutputs` per step comes out by
`call_soon_threadsafe` and is split per gateway. Knows which gateway session owns which request; knows no
messages, no positions in streams and no policy. All methods belong to the event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from services.domain.errors import ServeError, WorkerLost
from services.domain.generation import FinishReason, Usage
from services.domain.ids import RequestKey, TenantId
from worker.engine.commands import Cancel, Command, FinishChoice, SnapshotKv, Submit
from worker.engine.kv_events import Stored
from worker.engine.outputs import Ended, Event, Preempted, Refused, StepOutputs, StepStats
from worker.gateway_step import GatewayStep, SessionId, session_of, split


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """A request that the engine was given and has not ended."""

    handle: int
    key: RequestKey
    tenant: TenantId


class RequestObserver(Protocol):
    """Watches the life of requests (spans, log lines, metrics). Must neither wait nor raise."""

    def submitted(self, request: LiveRequest, num_prompt_tokens: int, traceparent: str) -> None: ...

    def preempted(self, request: LiveRequest) -> None: ...

    def ended(self, request: LiveRequest, end: Ended | Refused) -> None: ...


class Steps(Protocol):
    """The step loop, as far as the bridge needs it."""

    def start(self) -> None: ...

    def post(self, command: Command) -> None: ...

    def stop(self, timeout_s: float | None = None) -> bool: ...

    def stuck_s(self) -> float: ...


Value = TypeVar("Value")

MakeSteps = Callable[[Callable[[StepOutputs], None], Callable[[BaseException], None]], Steps]


class AsyncEngine:
    """Live requests by process-wide handle, which is (session, the gateway's own handle) in one number."""

    def __init__(self, make_steps: MakeSteps, observer: RequestObserver) -> None:
        """Args:
        make_steps: Makes the step loop, not started, from the two callbacks it calls in its own thread.
        """
        self._loop = asyncio.get_running_loop()
        self._steps = make_steps(self._hand_over_step, self.hand_over_fault)
        self._post = self._steps.post
        self._observer = observer
        self._sinks: dict[SessionId, Callable[[GatewayStep], None]] = {}
        self._live: dict[int, LiveRequest] = {}
        self._handle_of: dict[RequestKey, int] = {}
        self._listeners: list[Callable[[StepOutputs], None]] = []
        self._next_session = 1
        self._idle = asyncio.Event()
        self._idle.set()
        self._ready = asyncio.Event()
        self.fault: asyncio.Future[BaseException] = self._loop.create_future()
        """Done when the step loop has ended by an error."""
        self.last: StepStats | None = None
        """Numbers of the last step."""

    async def start(self) -> None:
        """Start the step loop and wait for its first word."""
        self._steps.start()
        await self._ready.wait()

    async def stop(self, timeout_s: float) -> bool:
        """End the step loop after the step that runs; say whether it has ended in time."""
        return await asyncio.to_thread(self._steps.stop, timeout_s)

    # Sessions.

    def open_session(self, sink: Callable[[GatewayStep], None]) -> SessionId:
        """Begin a gateway session; `sink` gets what each step made for it and must not wait."""
        session = SessionId(self._next_session)
        self._next_session += 1
        self._sinks[session] = sink
        return session

    def close_session(self, session: SessionId) -> int:
        """Cancel all requests of a session and forget it. Idempotent.

        Returns:
            How many were live.
        """
        if self._sinks.pop(session, None) is None:
            return 0
        handles = [handle for handle in self._live if session_of(handle) == session]
        for handle in handles:
            self._post(Cancel(handle))
        return len(handles)

    def listen(self, listener: Callable[[StepOutputs], None]) -> None:
        """Give every step's outputs to `listener`, on the event loop; it must not wait."""
        self._listeners.append(listener)

    # Commands.

    def submit(self, submit: Submit, traceparent: str = "") -> None:
        """Give a request to the engine, or attach to it; `submit.handle` comes from `handle_in`."""
        assert self.uses(submit.handle) in (None, submit.key), "a handle names one request"
        attached_from = self._handle_of.get(submit.key)
        request = LiveRequest(submit.handle, submit.key, submit.tenant)
        if attached_from is not None:
            self._live.pop(attached_from, None)
        else:
            self._observer.submitted(request, len(submit.prompt_ids), traceparent)
        self._live[submit.handle] = request
        self._handle_of[submit.key] = submit.handle
        self._idle.clear()
        self._post(submit)

    def cancel(self, handle: int) -> None:
        """End a request; the engine applies it before its next plan, and ignores what it does not know."""
        self._post(Cancel(handle))

    def finish_choice(self, handle: int, choice: int, reason: FinishReason) -> None:
        """End one choice of a live request."""
        self._post(FinishChoice(handle, choice, reason))

    def refuse(self, handle: int, key: RequestKey, error: ServeError) -> None:
        """Tell a gateway that its Submit did not reach the engine."""
        self._deliver_event(Refused(handle, key, error))

    def post(self, command: Command) -> None:
        """Pass on slices, ranks and drain."""
        self._post(command)

    def snapshot(self, reply: Callable[[tuple[Stored, ...]], None]) -> None:
        """Ask for every published block; `reply` runs on the event loop, in order with the steps."""
        self._post(SnapshotKv(lambda blocks: self._call_soon(reply, blocks)))

    # Questions.

    @property
    def live(self) -> tuple[LiveRequest, ...]:
        return tuple(self._live.values())

    def is_live(self, key: RequestKey) -> bool:
        return key in self._handle_of

    def uses(self, handle: int) -> RequestKey | None:
        """Return the live request behind a handle."""
        request = self._live.get(handle)
        return None if request is None else request.key

    def stuck_s(self) -> float:
        """Return the seconds since the last finished step while work exists; 0 when idle."""
        return self._steps.stuck_s()

    async def wait_idle(self) -> None:
        """Wait until no request is live."""
        await self._idle.wait()

    def end_all(self, error: ServeError) -> None:
        """Tell all gateways that their requests ended with `error`, and cancel them."""
        for request in self.live:
            self._post(Cancel(request.handle))
            self._finish(_ended_by(request, error), deliver=True)

    # Inside.

    def _hand_over_step(self, outputs: StepOutputs) -> None:
        self._call_soon(self._take, outputs)

    def hand_over_fault(self, error: BaseException) -> None:
        """End all requests and the engine by an error, from any thread; the first one counts."""
        self._call_soon(self._fail, error)

    def _call_soon(self, call: Callable[[Value], None], value: Value) -> None:
        """Call on the event loop, from the step thread."""
        try:
            self._loop.call_soon_threadsafe(call, value)
        except RuntimeError:
            # A hung step that comes back after the worker has gone has nobody left to tell.
            if not self._loop.is_closed():
                raise

    def _take(self, outputs: StepOutputs) -> None:
        self.last = outputs.stats
        self._ready.set()
        for session, step in split(outputs).items():
            sink = self._sinks.get(session)
            if sink is not None:
                sink(step)
        for event in outputs.events:
            if isinstance(event, Ended | Refused):
                self._finish(event, deliver=False)
            elif isinstance(event, Preempted) and event.handle in self._live:
                self._observer.preempted(self._live[event.handle])
        for listener in self._listeners:
            listener(outputs)

    def _fail(self, error: BaseException) -> None:
        if not self.fault.done():
            self.fault.set_result(error)
        self._ready.set()
        for request in self.live:
            self._finish(_ended_by(request, WorkerLost("the worker's engine failed")), deliver=True)

    def _finish(self, end: Ended | Refused, *, deliver: bool) -> None:
        request = self._live.pop(end.handle, None)
        if request is None:
            return
        if self._handle_of.get(request.key) == end.handle:
            del self._handle_of[request.key]
        self._observer.ended(request, end)
        if deliver:
            self._deliver_event(end)
        if not self._live:
            self._idle.set()

    def _deliver_event(self, event: Event) -> None:
        sink = self._sinks.get(session_of(event.handle))
        if sink is not None:
            sink(GatewayStep(step=self.last.step if self.last else 0, events=[event]))


def _ended_by(request: LiveRequest, error: ServeError) -> Ended:
    return Ended(
        handle=request.handle,
        key=request.key,
        tenant=request.tenant,
        usage=Usage(),
        computed_tokens=0,
        page_seconds=0.0,
        peak_pages=0,
        queue_s=0.0,
        prefill_s=0.0,
        decode_s=0.0,
        preemptions=0,
        error=error,
    )
