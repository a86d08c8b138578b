"""Joins the steps of one gateway, so that a stream costs a message every 25 ms and not one every step.

What somebody waits for goes at once: a request's first token, and each of its events with all its tokens up
to there. Knows values, no messages; the order inside one choice is kept.
"""

import asyncio
from collections.abc import Callable

from worker.engine.step_tokens import StepTokens, join
from worker.gateway_step import GatewayStep

JOIN_S = 0.025
"""Seconds that a token may wait for further ones; a caller sees text so often."""


class StepJoiner:
    """Takes every step of one gateway and sends fewer.

    Args:
        send: Gets what goes out.
    """

    def __init__(self, send: Callable[[GatewayStep], None]) -> None:
        self._send = send
        self._kept: list[StepTokens] = []
        self._num_gone: dict[int, int] = {}
        """By handle, of how many of the kept steps its tokens have gone out already."""
        self._step = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, step: GatewayStep) -> None:
        """Take a step: send what is urgent in it, keep the rest for a moment."""
        self._step, tokens = step.step, step.tokens
        if tokens.handles:
            self._kept.append(tokens)
        # Most steps hold nothing urgent: then nothing is done for each row until the timer.
        urgent = {event.handle for event in step.events}
        if 0 in tokens.first_positions:
            firsts = zip(tokens.handles, tokens.first_positions, strict=True)
            urgent.update(handle for handle, first in firsts if first == 0)
        if urgent:
            joined = self._join(urgent)
            self._num_gone.update(dict.fromkeys(urgent, len(self._kept)))
            self._send(GatewayStep(self._step, joined, step.events))
        if self._kept and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(JOIN_S, self._on_timer)

    def close(self) -> None:
        """Send nothing more. Idempotent."""
        self._kept.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        if not self._kept:
            return
        joined = self._join(None)
        self._kept.clear()
        self._num_gone.clear()
        if joined.handles:
            self._send(GatewayStep(self._step, joined))

    def _join(self, handles: set[int] | None) -> StepTokens:
        """Join what has not gone out, of some handles or of all."""
        if handles is None and not self._num_gone:
            return join(self._kept)
        num_gone = self._num_gone
        rows = [
            [
                row
                for row, handle in enumerate(tokens.handles)
                if number >= num_gone.get(handle, 0) and (handles is None or handle in handles)
            ]
            for number, tokens in enumerate(self._kept)
        ]
        return join(self._kept, rows)
