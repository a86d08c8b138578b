"""Steps of one gateway are joined: what somebody waits for goes at once, nothing is lost or reordered."""

import asyncio
import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.batch import TopLogprobs
from worker.engine.outputs import Preempted
from worker.engine.step_tokens import StepTokens
from worker.gateway_step import GatewayStep
from worker.step_joiner import StepJoiner

TOP = TopLogprobs((7, 8), (-0.1, -2.0))


class Wire:
    """What goes out."""

    def __init__(self) -> None:
        self.steps: list[GatewayStep] = []
        self.arrived = asyncio.Event()
        self.joiner = StepJoiner(self._send)

    def _send(self, step: GatewayStep) -> None:
        self.steps.append(step)
        self.arrived.set()

    async def next_step(self) -> GatewayStep:
        async with asyncio.timeout(60):
            self.arrived.clear()
            await self.arrived.wait()
        return self.steps[-1]


def a_step(number: int, *entries: tuple[int, int, list[int]], events: tuple[int, ...] = ()) -> GatewayStep:
    """Tokens of (handle, first position, ids), one choice each, and events of handles."""
    tokens = StepTokens()
    for handle, first, ids in entries:
        tokens.add(handle, 0, first, ids)
    return GatewayStep(number, tokens, [Preempted(handle) for handle in events])


def content(step: GatewayStep) -> list[tuple[int, int, list[int]]]:
    """The inverse of `a_step`."""
    start, entries, tokens = 0, [], step.tokens
    for handle, first, count in zip(tokens.handles, tokens.first_positions, tokens.counts, strict=True):
        entries.append((handle, first, tokens.token_ids[start : start + count]))
        start += count
    return entries


async def test_a_first_token_goes_at_once_and_the_next_ones_together() -> None:
    wire = Wire()
    wire.joiner.add(a_step(1, (5, 0, [10])))
    assert content(wire.steps[0]) == [(5, 0, [10])]
    wire.joiner.add(a_step(2, (5, 1, [11])))
    wire.joiner.add(a_step(3, (5, 2, [12, 13])))
    assert len(wire.steps) == 1
    joined = await wire.next_step()
    assert content(joined) == [(5, 1, [11, 12, 13])]
    assert joined.step == 3
    wire.joiner.add(a_step(4, (5, 4, [14])))
    assert content(await wire.next_step()) == [(5, 4, [14])]


async def test_an_event_takes_its_own_tokens_along_and_no_others() -> None:
    wire = Wire()
    wire.joiner.add(a_step(1, (5, 1, [11]), (6, 1, [21])))
    wire.joiner.add(a_step(2, (5, 2, [12]), (6, 2, [22]), events=(6,)))
    assert content(wire.steps[0]) == [(6, 1, [21, 22])]
    assert [event.handle for event in wire.steps[0].events] == [6]
    assert content(await wire.next_step()) == [(5, 1, [11, 12])]


async def test_logprobs_stay_with_their_tokens() -> None:
    wire = Wire()
    wire.joiner.add(a_step(1, (5, 1, [11]), (6, 1, [21])))
    asked = a_step(2, (5, 2, [12]), (6, 2, [22, 23]))
    asked.tokens.annotate(1, -0.5, TOP)
    asked.tokens.annotate(2, -0.6, TOP)
    wire.joiner.add(asked)
    wire.joiner.add(a_step(3, (6, 4, [24])))
    joined = await wire.next_step()
    assert content(joined) == [(5, 1, [11, 12]), (6, 1, [21, 22, 23, 24])]
    assert [None if math.isnan(one) else one for one in joined.tokens.logprobs] == [
        *(None, None),
        *(None, -0.5, -0.6, None),
    ]
    assert joined.tokens.tops == [(3, TOP), (4, TOP)]


async def test_a_closed_joiner_sends_nothing_more() -> None:
    wire = Wire()
    wire.joiner.add(a_step(1, (5, 1, [11])))
    wire.joiner.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await wire.arrived.wait()


@given(st.lists(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans()), max_size=4)))
async def test_every_token_goes_out_once_and_in_order(steps: list[list[tuple[int, int, bool]]]) -> None:
    wire = Wire()
    made: defaultdict[int, list[int]] = defaultdict(list)
    for number, entries in enumerate(steps):
        unique = {handle: (count, urgent) for handle, count, urgent in entries}
        step = []
        for handle, (count, _) in unique.items():
            ids = [100 * number + index for index in range(count)]
            step.append((handle, len(made[handle]), ids))
            made[handle] += ids
        wire.joiner.add(a_step(number, *step, events=tuple(h for h, (_, urgent) in unique.items() if urgent)))
    if any(len(ids) for ids in made.values()):
        wire.joiner.add(a_step(len(steps), events=tuple(made)))
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for sent in wire.steps:
        for handle, first, ids in content(sent):
            assert first == len(seen[handle])
            seen[handle] += ids
    assert seen == made
    wire.joiner.close()
