"""Which gateways are here, up to where each has received its stream, and when one is given up.

A session is one boot of one gateway. It outlives its connection by `DEAD_AFTER_S`, so that a blip loses and
doubles nothing; then all of its requests are cancelled. Knows no messages and no requests.
"""

import time
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

from services.chassis.stream import DEAD_AFTER_S, Outbox
from services.domain.errors import StaleAttempt
from services.domain.ids import Epoch, GatewayId
from worker.async_engine import AsyncEngine
from worker.gateway_step import GatewayStep, SessionId
from worker.resend_buffer import ResendBuffer
from worker.step_joiner import StepJoiner

MAX_UNCONFIRMED = 4096
"""Messages that a gateway may leave unconfirmed: 40 s of steps of 10 ms, far more than a live one does."""

Message = TypeVar("Message")

_log = structlog.get_logger()


class GatewaySession(Generic[Message]):
    """One boot of one gateway: what it has not confirmed, and the connection it has now, if any."""

    def __init__(self, name: GatewayId, epoch: Epoch, now: float) -> None:
        self.name = name
        self.epoch = epoch
        self.heard_at = now
        self.id = SessionId(0)
        self.buffer: ResendBuffer[Message] = ResendBuffer(MAX_UNCONFIRMED)
        self.joiner: StepJoiner | None = None
        self._outbox: Outbox[Message] | None = None

    def attach(self, outbox: Outbox[Message], now: float) -> None:
        """Take a new connection; an older one is closed."""
        if self._outbox is not None:
            self._outbox.close()
        self._outbox = outbox
        self.heard_at = now

    def detach(self, outbox: Outbox[Message], now: float) -> None:
        """Note that a connection is gone, if it is still the one in use; the time to come back begins."""
        if self._outbox is outbox:
            self._outbox = None
            if now - self.heard_at < DEAD_AFTER_S:
                self.heard_at = now

    def send(self, message: Message) -> None:
        """Keep a message and put it on the connection, if there is one."""
        self.buffer.append(message)
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    def close(self) -> None:
        if self.joiner is not None:
            self.joiner.close()
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = None


class Gateways(Generic[Message]):
    """The sessions of all gateways, one per name.

    Args:
        number: Makes the message of a step at a position of the session's stream.
    """

    def __init__(self, engine: AsyncEngine, number: Callable[[int, GatewayStep], Message]) -> None:
        self._engine = engine
        self._number = number
        self._sessions: dict[GatewayId, GatewaySession[Message]] = {}

    def enter(
        self, name: GatewayId, epoch: Epoch, received: int | None
    ) -> tuple[GatewaySession[Message], bool]:
        """Find or begin the session of a gateway that says hello.

        Args:
            received: Position up to which it has this session's messages; None when it does not resume.

        Returns:
            The session, and whether it goes on after `received`.

        Raises:
            StaleAttempt: A newer boot of this gateway has been here.
        """
        session = self._sessions.get(name)
        if session is not None:
            if epoch < session.epoch:
                raise StaleAttempt(f"gateway {name} has been restarted since epoch {epoch}")
            resumes = received is not None and session.buffer.can_resume_after(received)
            if epoch == session.epoch and resumes and received is not None:
                session.buffer.confirm(received)
                return session, True
            self.drop(session, "gateway_began_anew")
        session = GatewaySession(name, epoch, time.monotonic())
        session.id = self._engine.open_session(self._sink(session))
        self._sessions[name] = session
        _log.info("gateway_connected", gateway=name, epoch=epoch)
        return session, False

    def is_current(self, session: GatewaySession[Message]) -> bool:
        return self._sessions.get(session.name) is session

    def drop(self, session: GatewaySession[Message], reason: str) -> None:
        """Cancel all that a session holds and forget it. Idempotent."""
        if not self.is_current(session):
            return
        del self._sessions[session.name]
        num_cancelled = self._engine.close_session(session.id)
        session.close()
        _log.info("gateway_dropped", gateway=session.name, reason=reason, cancelled=num_cancelled)

    def drop_silent(self, now: float) -> None:
        """Drop the sessions that were not heard of for `DEAD_AFTER_S`, connected or not."""
        for session in list(self._sessions.values()):
            if now - session.heard_at > DEAD_AFTER_S:
                self.drop(session, "silent")

    def drop_all(self, reason: str) -> None:
        for session in list(self._sessions.values()):
            self.drop(session, reason)

    def _sink(self, session: GatewaySession[Message]) -> Callable[[GatewayStep], None]:
        def deliver(step: GatewayStep) -> None:
            if session.buffer.is_full:
                self.drop(session, "does_not_confirm")
            else:
                session.send(self._number(session.buffer.last + 1, step))

        session.joiner = StepJoiner(deliver)
        return session.joiner.add
