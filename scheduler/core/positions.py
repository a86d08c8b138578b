"""Tells gateways where their requests stand: once when one has to wait, then at most once a second.

Knows what was told; changes nothing in the queue.
"""

from itertools import islice

from scheduler.core.outputs import Output, Queued
from scheduler.core.placer import Placer
from scheduler.core.request import WaitingRequest
from scheduler.core.rules import Rules
from scheduler.core.waiting_room import WaitingRoom


class Positions:
    """Who has to be told."""

    def __init__(self, rules: Rules, room: WaitingRoom, placer: Placer) -> None:
        self._rules = rules
        self._room = room
        self._placer = placer
        self._new: list[tuple[WaitingRequest, int]] = []
        self._next: float | None = None

    def arrived(self, request: WaitingRequest) -> None:
        """A request came in (or asked again): it is told where it stands unless it is placed at once."""
        self._new.append((request, self._room.policy.position(request)))

    def next_wake(self) -> float | None:
        """Return when positions are looked at next; only matters while something waits."""
        return self._next

    def update(self, now: float) -> list[Output]:
        """Return what gateways should hear now. Call it after placing."""
        outputs: list[Output] = []
        undecided: list[tuple[WaitingRequest, int]] = []
        for request, position in self._new:
            if self._room.get(request.key.request_id) is not request:
                continue
            if not self._placer.settled(request):
                undecided.append((request, position))
                continue
            acquire = request.acquire
            in_front = self._room.policy.num_waiting(acquire.model, acquire.band)
            outputs.append(self._told(request, min(position, in_front), now))
        self._new = undecided
        if self._next is None or now >= self._next:
            outputs += self._refresh(now)
            self._next = now + self._rules.position_every_s if len(self._room) else None
        return outputs

    def _refresh(self, now: float) -> list[Output]:
        """Look at the heads; further back a position is old, but soon to be looked at."""
        outputs: list[Output] = []
        for model in self._room.policy.models():
            heads = islice(self._room.policy.candidates(model), self._rules.position_depth)
            for position, request in enumerate(heads, start=1):
                shown = request.shown_position
                if shown is not None and (position <= 0.8 * shown or position > 1.5 * shown):
                    outputs.append(self._told(request, position, now))
        return outputs

    def _told(self, request: WaitingRequest, position: int, now: float) -> Queued:
        request.shown_position = position
        return Queued(
            gateway=request.gateway,
            key=request.key,
            position=position,
            expected_wait_s=self._placer.expected_wait_s(request.acquire.model, position, now),
        )
