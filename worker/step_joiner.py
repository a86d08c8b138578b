"""Joins the steps of one gateway, so that a stream costs a message every 25 ms and not one every step.

What somebody waits for goes at once: a request's first token, and each of its events with all its tokens up
to there. Knows values, no messages; the order inside one choice is kept.
"""

import asyncio
from collections.abc import Callable, Iterable

from worker.async_engine import HANDLE_MASK, NAN, GatewayStep
from worker.engine.batch import TopLogprobs
from worker.engine.outputs import Event

JOIN_S = 0.025
"""Seconds that a token may wait for further ones; a caller sees text so often."""


class _Run:
    """Consecutive tokens of one choice that wait."""

    __slots__ = ("first_position", "ids", "logprobs", "tops")

    def __init__(self, first_position: int) -> None:
        self.first_position = first_position
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        """Empty, or parallel to `ids`."""
        self.tops: list[tuple[int, TopLogprobs]] = []
        """Index into `ids` and its alternatives."""


class StepJoiner:
    """Takes every step of one gateway and sends fewer.

    Args:
        send: Gets what goes out.
    """

    def __init__(self, send: Callable[[GatewayStep], None]) -> None:
        self._send = send
        self._runs: dict[int, dict[int, _Run]] = {}
        """By handle and choice."""
        self._step = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, step: GatewayStep) -> None:
        """Take a step: send what is urgent in it, keep the rest for a moment."""
        self._step = step.step
        urgent = dict.fromkeys(event.handle & HANDLE_MASK for event in step.events)
        start, tops = 0, iter(step.tops)
        top = next(tops, None)
        for handle, choice, first_position, count in zip(
            step.handles, step.choices, step.first_positions, step.counts, strict=True
        ):
            end = start + count
            if first_position == 0:
                urgent[handle] = None
            choices = self._runs.setdefault(handle, {})
            run = choices.get(choice)
            if run is None:
                run = choices[choice] = _Run(first_position)
            if step.logprobs:
                run.logprobs += [NAN] * (len(run.ids) - len(run.logprobs)) + step.logprobs[start:end]
                while top is not None and top[0] < end:
                    run.tops.append((len(run.ids) + top[0] - start, top[1]))
                    top = next(tops, None)
            elif run.logprobs:
                run.logprobs += [NAN] * count
            run.ids += step.token_ids[start:end]
            start = end
        if urgent:
            self._flush(urgent, step.events)
        if self._runs and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(JOIN_S, self._on_timer)

    def close(self) -> None:
        """Send nothing more. Idempotent."""
        self._runs.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        if self._runs:
            self._flush(tuple(self._runs), [])

    def _flush(self, handles: Iterable[int], events: list[Event]) -> None:
        joined = GatewayStep(self._step, events=events)
        for handle in handles:
            for choice, run in self._runs.pop(handle, {}).items():
                start = len(joined.token_ids)
                if run.logprobs or joined.logprobs:
                    joined.logprobs += [NAN] * (start - len(joined.logprobs))
                    joined.logprobs += run.logprobs or [NAN] * len(run.ids)
                    joined.tops += [(start + index, top) for index, top in run.tops]
                joined.handles.append(handle)
                joined.choices.append(choice)
                joined.first_positions.append(run.first_position)
                joined.counts.append(len(run.ids))
                joined.token_ids += run.ids
        self._send(joined)
