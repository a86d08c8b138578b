"""The single writer: owns the core of this term, gives it the time, and delivers what it says.

Runs on one event loop. Inputs are plain calls from streams; placing happens in one task that wakes when
something came in or when the core asked for it, so what arrives in one turn of the loop is placed together.
Knows no wire format.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

import structlog
from opentelemetry.trace import Span

from scheduler.core.boots import Boots
from scheduler.core.credits import Report, WorkerHello
from scheduler.core.outputs import AskMatch, Output, Placed, PlacementsMade, Ranks, Rejected, ToAllGateways
from scheduler.core.policy import QueuePolicy
from scheduler.core.request import Acquire, Match, Terms
from scheduler.core.rules import Rules
from scheduler.core.state import SchedulerCore
from scheduler.metrics import SchedulerMetrics
from services.chassis.telemetry import inject, start_span
from services.domain.errors import InvalidField
from services.domain.ids import Epoch, GatewayId, RequestKey, TenantId, WorkerId

SHOW_EVERY_S = 1.0
"""Least time between two settings of the gauges."""

_log = structlog.get_logger()


class Session(Protocol):
    """One stream of a gateway or a worker."""

    def send(self, output: Output) -> None:
        """Queue a message for the peer; never waits."""

    def close(self) -> None:
        """End the stream."""


class WorkerSession(Session, Protocol):
    """The stream of a worker."""

    def drain(self) -> None:
        """Tell the worker to take nothing more."""


class Dispatcher:
    """Everything between the streams and the core.

    Args:
        new_policy: Makes the queue policy of a term.
        epoch: This boot; it is the first term. A term is microseconds since 1970, so it grows with each boot.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        new_policy: Callable[[], QueuePolicy],
        epoch: Epoch,
        metrics: SchedulerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._new_policy = new_policy
        self._metrics = metrics
        self._clock = clock
        self.term = epoch
        self.core = SchedulerCore(rules, new_policy(), clock())
        self.gateway_boots = Boots()
        self.worker_boots = Boots()
        self.gateways: dict[GatewayId, tuple[Epoch, Session]] = {}
        self._workers: dict[WorkerId, WorkerSession] = {}
        self._ask: Callable[[AskMatch, str], None] | None = None
        self.matching_now = False
        """Whether the kvmanager can be asked."""
        self._caps: Mapping[TenantId, int] = {}
        self._spans: dict[RequestKey, Span] = {}
        self._changed = asyncio.Event()
        self._shown = float("-inf")

    # Gateways

    def connect_gateway(
        self, gateway: GatewayId, epoch: Epoch, waiting: Sequence[Acquire], session: Session
    ) -> None:
        """Take a gateway's hello; an earlier stream of it ends.

        Raises:
            StaleAttempt: A newer boot of it was here.
        """
        self.gateway_boots.accept(gateway, epoch)
        if gateway in self.gateways:
            self.gateways[gateway][1].close()
        self.gateways[gateway] = epoch, session
        for output in self.core.known_to_gateways():
            session.send(output)
        for acquire in waiting:
            self._begin_span(acquire)
        self._deliver(self.core.gateway_connected(gateway, waiting, self._clock()))
        _log.info("gateway_connected", gateway=gateway, epoch=epoch, num_waiting=len(waiting))

    def gateway_left(self, gateway: GatewayId, session: Session) -> None:
        """A gateway's stream ended. One that was replaced already changes nothing."""
        if not self._is_gateway(gateway, session):
            return
        del self.gateways[gateway]
        self._deliver(self.core.gateway_gone(gateway))
        for key in [key for key in self._spans if self.core.room.get(key.request_id) is None]:
            self._spans.pop(key).end()
        _log.info("gateway_left", gateway=gateway)

    def acquire(self, gateway: GatewayId, acquire: Acquire, session: Session) -> None:
        if self._is_gateway(gateway, session):
            self._begin_span(acquire)
            self._deliver(self.core.acquire(gateway, acquire, self._clock()))

    def edited(self, gateway: GatewayId, terms: Terms, session: Session) -> None:
        if self._is_gateway(gateway, session):
            self.core.edited(gateway, terms)
            self._changed.set()

    def abandon(self, gateway: GatewayId, key: RequestKey, seq: int | None, session: Session) -> None:
        if self._is_gateway(gateway, session):
            self._deliver(self.core.abandon(key, seq))
            if (span := self._spans.pop(key, None)) is not None:
                span.end()

    # Workers

    def connect_worker(self, hello: WorkerHello, session: WorkerSession) -> None:
        """Take a worker's hello; an earlier stream of it ends.

        Raises:
            StaleAttempt: A newer boot of it was here.
        """
        self.worker_boots.accept(hello.worker, hello.epoch)
        if hello.worker in self._workers:
            self._workers[hello.worker].close()
        self._workers[hello.worker] = session
        self._deliver(self.core.worker_connected(hello, self._clock()))
        _log.info(
            "worker_connected",
            worker=hello.worker,
            epoch=hello.epoch,
            model=hello.model,
            num_live=len(hello.live),
        )

    def worker_left(self, worker: WorkerId, session: Session) -> None:
        """A worker's stream ended. One that was replaced already changes nothing."""
        if self._workers.get(worker) is session:
            del self._workers[worker]
            self._deliver(self.core.worker_gone(worker, self._clock()))
            num_held = len(self.core.faults.quarantine.entries(self._clock()))
            _log.warning("worker_left", worker=worker, num_quarantined=num_held)

    def report(self, worker: WorkerId, report: Report, session: Session) -> None:
        if self._workers.get(worker) is session:
            self._deliver(self.core.report(worker, report, self._clock()))

    def drain_worker(self, worker: WorkerId) -> int:
        """Place nothing more on a worker, tell it, and return how many requests it still has.

        Raises:
            InvalidField: There is no such worker.
        """
        if worker not in self._workers:
            known = ", ".join(sorted(self._workers)) or "none"
            raise InvalidField("worker", f"must be a connected worker ({known}), got {worker}")
        self._deliver(self.core.drain(worker, self._clock()))
        self._workers[worker].drain()
        _log.info("worker_drains", worker=worker)
        return self.core.live.num_on(worker)

    def release(self, digest: bytes) -> int:
        """Serve a prompt again that is kept from workers, or all of them (empty); return how many were.

        Raises:
            InvalidField: There is no such prompt.
        """
        quarantine = self.core.faults.quarantine
        if digest and not quarantine.release(digest):
            raise InvalidField("digest", f"{digest.hex()} is not quarantined; `quire status` shows what is")
        num = 1 if digest else quarantine.release_all()
        self._changed.set()
        _log.info("quarantine_released", num_prompts=num)
        return num

    # The kvmanager

    def use_matches(self, ask: Callable[[AskMatch, str], None]) -> None:
        """Say how to ask the kvmanager, with a traceparent or "". Questions begin with `matching`."""
        self._ask = ask

    def matching(self, on: bool) -> None:
        self.matching_now = on
        self.core.set_matching(on)
        self._changed.set()

    def set_caps(self, caps: Mapping[TenantId, int]) -> None:
        """Refuse what needs more KV pages than its tenant's cap; they stay when the kvmanager is gone."""
        self._caps = self.core.refusals.caps = caps

    def match_answered(self, key: RequestKey, match: Match) -> None:
        self.core.match_answered(key, match)
        self._changed.set()

    # The process

    def restart(self, epoch: Epoch) -> None:
        """Begin a new term with nothing: this process did not run, and its peers hold it for dead."""
        self.term = max(epoch, Epoch(self.term + 1))
        self.close()
        self.core = SchedulerCore(self._rules, self._new_policy(), self._clock())
        self.core.set_matching(self.matching_now)
        self.core.refusals.caps = self._caps
        self._changed.set()
        _log.warning("term_begun", term=self.term)

    def close(self) -> None:
        """End all streams; gateways keep what waits and bring it to whoever answers next."""
        sessions: list[Session] = [session for _, session in self.gateways.values()]
        sessions += self._workers.values()
        self.gateways.clear()
        self._workers.clear()
        for session in sessions:
            session.close()
        for span in self._spans.values():
            span.end()
        self._spans.clear()

    async def run(self) -> NoReturn:
        """Place for ever."""
        loop = asyncio.get_running_loop()
        while True:
            now = self._clock()
            self._deliver(self.core.place(now), wake=False)
            if now - self._shown >= SHOW_EVERY_S:
                self._shown = now
                self._metrics.show(self.core, now)
            due = self.core.next_wake()
            timer = None if due is None else loop.call_later(max(0.0, due - now), self._changed.set)
            await self._changed.wait()
            self._changed.clear()
            if timer is not None:
                timer.cancel()
            await asyncio.sleep(0)  # An answer that came in together with its time limit is heard first.

    def now(self) -> float:
        return self._clock()

    # Inside

    def _is_gateway(self, gateway: GatewayId, session: Session) -> bool:
        return gateway in self.gateways and self.gateways[gateway][1] is session

    def _deliver(self, outputs: Sequence[Output], *, wake: bool = True) -> None:
        """Hand outputs to their streams. A stream that is gone needs nothing: its peer starts anew."""
        if wake:
            self._changed.set()
        for output in outputs:
            self._metrics.handled(output)
            if isinstance(output, AskMatch):
                if self._ask is not None:
                    span = self._spans.get(output.acquire.key)
                    self._ask(output, "" if span is None else inject(span))
            elif isinstance(output, ToAllGateways):
                for _, session in self.gateways.values():
                    session.send(output)
            elif isinstance(output, PlacementsMade | Ranks):
                if output.worker in self._workers:
                    self._workers[output.worker].send(output)
            else:
                if output.gateway in self.gateways:
                    self.gateways[output.gateway][1].send(output)
                if isinstance(output, Placed | Rejected):
                    self._end_span(output)

    def _begin_span(self, acquire: Acquire) -> None:
        if acquire.traceparent:
            span = start_span("scheduler.acquire", acquire.traceparent, model=acquire.model)
            if (former := self._spans.pop(acquire.key, None)) is not None:
                former.end()
            self._spans[acquire.key] = span

    def _end_span(self, output: Placed | Rejected) -> None:
        span = self._spans.pop(output.acquire.key, None)
        if span is None:
            return
        if isinstance(output, Placed):
            span.set_attribute("worker", output.worker)
            span.set_attribute("cached_tokens", output.cached_tokens)
        else:
            span.set_attribute("rejected", output.error.reason)
        span.end()
