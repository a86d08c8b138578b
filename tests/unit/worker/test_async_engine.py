"""The bridge between the event loop and the step loop."""

import asyncio
import math

from services.domain.errors import WorkerLost
from tests.unit.worker.engine_stand_in import HandSteps, Observed, ended, key, stats, submit
from worker.async_engine import AsyncEngine, GatewayStep, SessionId, handle_in, split
from worker.engine.batch import TopLogprobs
from worker.engine.commands import Cancel
from worker.engine.outputs import Accepted, Event, StepOutputs, TokensOut

ONE, TWO = SessionId(1), SessionId(2)


def tokens(session: SessionId, handle: int, *ids: int, **fields: object) -> TokensOut:
    return TokensOut(handle_in(session, handle), 0, 5, ids, **fields)


def test_a_step_is_split_by_gateway_with_its_arrays_parallel() -> None:
    event = Accepted(handle_in(TWO, 9), key(1))
    outputs = StepOutputs(
        tokens=(tokens(ONE, 7, 11, 12), tokens(TWO, 7, 13), tokens(ONE, 2**32 - 1, 14)),
        events=(event,),
        stats=stats(step=42),
    )
    steps = split(outputs)
    assert steps[ONE] == GatewayStep(42, [7, 2**32 - 1], [0, 0], [5, 5], [2, 1], [11, 12, 14])
    assert steps[TWO] == GatewayStep(42, [7], [0], [5], [1], [13], events=[event])


def test_logprobs_are_nan_for_tokens_that_did_not_ask() -> None:
    top = TopLogprobs((1, 2), (-0.5, -1.0))
    outputs = StepOutputs(
        tokens=(
            tokens(ONE, 1, 11),
            tokens(ONE, 2, 12, logprobs=(-0.5,), top=(top,)),
            tokens(ONE, 3, 13, 14),
        ),
        stats=stats(),
    )
    step = split(outputs)[ONE]
    assert [math.isnan(value) for value in step.logprobs] == [True, False, True, True]
    assert step.tops == [(1, top)]
    assert split(StepOutputs(tokens=(tokens(ONE, 1, 11),), stats=stats()))[ONE].logprobs == []


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
