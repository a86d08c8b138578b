"""What one step made for one gateway, cut out of what it made for all.

Knows how a session and a gateway's own handle make one number; knows no engine and no messages.
"""

from dataclasses import dataclass, field
from typing import NewType

from worker.engine.outputs import Event, StepOutputs
from worker.engine.step_tokens import StepTokens

SessionId = NewType("SessionId", int)
"""One gateway session of this process, from 1; never used again."""

HANDLE_BITS = 32
HANDLE_MASK = (1 << HANDLE_BITS) - 1


@dataclass(slots=True)
class GatewayStep:
    """What one step made for one gateway. Handles carry the session in their high bits."""

    step: int
    tokens: StepTokens = field(default_factory=StepTokens)
    events: list[Event] = field(default_factory=list)


def handle_in(session: SessionId, handle: int) -> int:
    """Return the process-wide handle of a gateway's own u32 handle."""
    return session << HANDLE_BITS | handle


def session_of(handle: int) -> SessionId:
    """Return the session of a process-wide handle."""
    return SessionId(handle >> HANDLE_BITS)


def split(outputs: StepOutputs) -> dict[SessionId, GatewayStep]:
    """Sort one step's tokens and events by gateway session."""
    number, tokens = outputs.stats.step, outputs.tokens
    steps: dict[SessionId, GatewayStep] = {}
    sessions = {handle >> HANDLE_BITS for handle in tokens.handles}
    if len(sessions) == 1:
        steps[session_of(tokens.handles[0])] = GatewayStep(number, tokens)
    else:
        rows_of: dict[SessionId, list[int]] = {}
        for row, handle in enumerate(tokens.handles):
            rows_of.setdefault(session_of(handle), []).append(row)
        steps = {session: GatewayStep(number, tokens.select(rows)) for session, rows in rows_of.items()}
    for event in outputs.events:
        session = session_of(event.handle)
        step = steps.get(session)
        if step is None:
            step = steps[session] = GatewayStep(number)
        step.events.append(event)
    return steps
