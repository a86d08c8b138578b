"""The bridge between the event loop and the step loop."""

import asyncio
import math

import pytest

from services.domain.errors import WorkerLost
from tests.unit.worker.engine_stand_in import HandSteps, Observed, ended, key, stats, submit
from worker.async_engine import AsyncEngine
from worker.engine.batch import TopLogprobs
from worker.engine.commands import Cancel
from worker.engine.outputs import Accepted, Event, StepOutputs
from worker.engine.step_tokens import StepTokens
from worker.gateway_step import GatewayStep, SessionId, handle_in, split
from worker.messages import step_to_pb

ONE, TWO = SessionId(1), SessionId(2)


def row(tokens: StepTokens, session: SessionId, handle: int, *ids: int) -> int:
    return tokens.add(handle_in(session, handle), 0, 5, ids)


def test_a_step_is_split_by_gateway_with_its_arrays_parallel() -> None:
    event = Accepted(handle_in(TWO, 9), key(1))
    tokens, one, two = StepTokens(), StepTokens(), StepTokens()
    row(tokens, ONE, 7, 11, 12)
    row(tokens, TWO, 7, 13)
    row(tokens, ONE, 2**32 - 1, 14)
    row(one, ONE, 7, 11, 12)
    row(one, ONE, 2**32 - 1, 14)
    row(two, TWO, 7, 13)
    steps = split(StepOutputs(tokens=tokens, events=(event,), stats=stats(step=42)))
    assert steps == {ONE: GatewayStep(42, one), TWO: GatewayStep(42, two, [event])}
    assert list(step_to_pb(steps[ONE]).handles) == [7, 2**32 - 1]


@pytest.mark.parametrize("other", [ONE, TWO], ids=["one gateway", "two gateways"])
def test_logprobs_are_nan_for_tokens_that_did_not_ask(other: SessionId) -> None:
    top = TopLogprobs((1, 2), (-0.5, -1.0))
    tokens = StepTokens()
    row(tokens, ONE, 1, 11)
    row(tokens, other, 4, 15)
    tokens.annotate(row(tokens, ONE, 2, 12), -0.5, top)
    row(tokens, ONE, 3, 13, 14)
    given = split(StepOutputs(tokens=tokens.whole(), stats=stats()))[ONE].tokens
    asked = given.token_ids.index(12)
    assert [math.isnan(value) for value in given.logprobs] == [token_id != 12 for token_id in given.token_ids]
    assert given.logprobs[asked] == -0.5
    assert given.tops == [(asked, top)]


def test_nobody_asked_for_logprobs() -> None:
    tokens = StepTokens()
    row(tokens, ONE, 1, 11)
    assert split(StepOutputs(tokens=tokens.whole(), stats=stats()))[ONE].tokens.logprobs == []


class Bench:
    """An engine on a hand-moved step loop, with one session open."""

    def __init__(self) -> None:
        self.steps: list[HandSteps] = []
        self.observed = Observed()
        self.engine = AsyncEngine(self._make, self.observed)
        self.heard: list[GatewayStep] = []

    def _make(self, *callbacks: object) -> HandSteps:
        self.steps.append(HandSteps(*callbacks))
        return self.steps[0]

    async def open(self) -> SessionId:
        await self.engine.start()
        return self.engine.open_session(self.heard.append)

    async def step(self, *events: Event, **fields: object) -> None:
        self.steps[0].on_step(StepOutputs(events=events, stats=stats(), **fields))
        await asyncio.sleep(0)

    @property
    def told(self) -> list[Event]:
        return [event for step in self.heard for event in step.events]


async def test_a_request_is_live_from_submit_to_its_one_end() -> None:
    bench = Bench()
    handle = handle_in(await bench.open(), 3)
    bench.engine.submit(submit(handle, 1))
    assert bench.engine.is_live(key(1))
    await bench.step(Accepted(handle, key(1)))
    await bench.step(ended(handle, 1))
    await bench.step(ended(handle, 1))
    assert not bench.engine.live
    await bench.engine.wait_idle()
    assert bench.observed.told == [("submitted", key(1)), ("ended", key(1))]


async def test_closing_a_session_cancels_what_it_has_and_hears_nothing_more() -> None:
    bench = Bench()
    session = await bench.open()
    other = bench.engine.open_session(bench.heard.append)
    for number, owner in enumerate((session, session, other)):
        bench.engine.submit(submit(handle_in(owner, number), number))
    assert bench.engine.close_session(session) == 2
    assert bench.engine.close_session(session) == 0
    assert bench.steps[0].commands[3:] == [Cancel(handle_in(session, 0)), Cancel(handle_in(session, 1))]
    await bench.step(ended(handle_in(session, 0), 0), ended(handle_in(other, 2), 2))
    assert bench.told == [ended(handle_in(other, 2), 2)]
    assert [request.key for request in bench.engine.live] == [key(1)]


async def test_attaching_moves_a_request_to_its_new_handle() -> None:
    bench = Bench()
    session = await bench.open()
    other = bench.engine.open_session(bench.heard.append)
    bench.engine.submit(submit(handle_in(session, 1), 1))
    bench.engine.submit(submit(handle_in(other, 8), 1))
    assert bench.engine.close_session(session) == 0
    assert [request.handle for request in bench.engine.live] == [handle_in(other, 8)]
    await bench.step(ended(handle_in(other, 8), 1))
    assert not bench.engine.is_live(key(1))
    assert bench.observed.told.count(("submitted", key(1))) == 1


async def test_a_fault_ends_every_request_with_a_typed_error() -> None:
    bench = Bench()
    session = await bench.open()
    for number in (1, 2):
        bench.engine.submit(submit(handle_in(session, number), number))
    bench.steps[0].on_fault(RuntimeError("broken"))
    assert isinstance(await bench.engine.fault, RuntimeError)
    assert [type(event.error) for event in bench.told] == [WorkerLost, WorkerLost]
    assert not bench.engine.live
