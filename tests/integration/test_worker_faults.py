"""Prompts that bring workers down, and workers that fail: real scheduler, gateways and workers over gRPC."""

import asyncio
import sys

import pytest

from scheduler.core.breaker import BreakerRules, Reason, State
from scheduler.core.rules import Rules
from services.domain.errors import BadRow, PromptQuarantined, WorkerLost
from services.domain.ids import WorkerId
from services.rpc.fleet_status import queue_status
from tests.fakes.fault_fleet import LIMIT_S, TOKEN, FaultFleet, fault_fleet

POISON = 7
"""A step that computes this id ends the engine of a worker whose fault it is."""
FOR_EVER_S = 1e6


async def quire(*words: str) -> tuple[int | None, str]:
    """Run the command; return its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *words), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    return process.returncode, out.decode()


async def poisoned(fleet: FaultFleet) -> None:
    for faults in fleet.faults:
        faults.crash_token = POISON


@pytest.mark.failure("B183")
@pytest.mark.parametrize("is_on", [True, False])
async def test_a_poison_prompt_takes_two_workers_with_it_and_no_third(is_on: bool) -> None:
    rules = Rules(quarantine_s=FOR_EVER_S if is_on else 0.0)
    async with fault_fleet(4, rules, num_gateways=2) as fleet:
        await poisoned(fleet)
        assert type(await fleet.ask(1, 2, POISON)) is WorkerLost
        await fleet.until(lambda: len(fleet.alive) == 2)
        again = await fleet.ask(1, 2, POISON, gateway=1)
        if not is_on:
            assert type(again) is WorkerLost
            await fleet.until(lambda: not fleet.alive)
            return
        assert type(again) is PromptQuarantined
        assert type(await fleet.ask(1, 2, POISON)) is PromptQuarantined
        assert len(fleet.alive) == 2
        assert [await fleet.ask(1, 2, 3, gateway=n) for n in range(2)] == [None, None]
        # An operator sees it, and lets it go once the fault is mended.
        status = await queue_status(fleet.scheduler_address)
        assert status is not None
        (held,) = status.quarantine
        assert held.num_workers == 2
        await fleet.until(lambda: fleet.metric("quire_quarantined_prompts") == 1)
        assert fleet.metric("quire_rejections_total", reason="PROMPT_QUARANTINED") == 2
        assert again.detail.metadata["digest"] == held.digest
        for faults in fleet.faults:
            faults.crash_token = None
        words = ("release", held.digest, "--scheduler", fleet.scheduler_address)
        assert await quire(*words) == (0, "1 prompts are served again\n")
        assert (await quire(*words))[0] == 1, "it is not there any more"
        assert await fleet.ask(1, 2, POISON) is None


@pytest.mark.parametrize("retry_percent", [10.0, 0.0])
async def test_a_request_whose_worker_fails_once_is_served_by_another_within_the_budget(
    retry_percent: float,
) -> None:
    async with fault_fleet(2, Rules(), retry_percent=retry_percent) as fleet:
        # Both are idle, so the first in the order of names gets it.
        fleet.faults[0].crash_token = POISON
        answer = await fleet.ask(1, POISON)
        await fleet.until(lambda: fleet.alive == [WorkerId("worker-1")])
        assert type(answer) is (type(None) if retry_percent else WorkerLost)


async def test_a_request_that_has_given_a_token_is_not_tried_again() -> None:
    async with fault_fleet(2, Rules()) as fleet:
        # The step after the first token computes it, and ends the engine.
        fleet.faults[0].crash_token = TOKEN
        error = await fleet.ask(1, 2, 3)
        assert type(error) is WorkerLost
        assert error.detail.usage is not None
        assert error.detail.usage.output_tokens == 1
        assert fleet.dispatcher.core.num_placed == 1


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_worker_that_gives_nan_rows_gets_nothing_more(is_on: bool) -> None:
    breaker = BreakerRules(min_failures=5 if is_on else 0, open_s=FOR_EVER_S, max_open_s=FOR_EVER_S)
    async with fault_fleet(2, Rules(breaker=breaker)) as fleet:
        fleet.faults[0].bad_token = POISON
        num_failed = num_asked = 0
        while fleet.state_of(0) is State.CLOSED and num_failed < 12:
            error = await fleet.ask(POISON, num_asked, 1)
            num_asked += 1
            num_failed += error is not None
            assert error is None or type(error) is BadRow
        if not is_on:
            assert fleet.state_of(0) is State.CLOSED
            return
        await fleet.until(lambda: fleet.state_of(0) is State.OPEN)
        assert num_failed >= 5
        assert [await fleet.ask(POISON, n, 2) for n in range(6)] == [None] * 6
        status = await queue_status(fleet.scheduler_address)
        assert status is not None
        breakers = [(one.breaker, one.breaker_reason) for one in status.workers]
        assert breakers == [("open", "errors"), ("closed", "")]
        await fleet.until(lambda: fleet.metric("quire_breaker_state", worker="worker-0") == 2)
        openings = fleet.metric("quire_breaker_openings_total", worker="worker-0", reason="errors")
        assert openings == 1


async def test_a_worker_says_that_it_is_stuck_and_gets_nothing_more() -> None:
    breaker = BreakerRules(stall_s=0.1, open_s=FOR_EVER_S, max_open_s=FOR_EVER_S)
    async with fault_fleet(1, Rules(breaker=breaker)) as fleet:
        fleet.faults[0].stall_token = POISON
        asking = asyncio.create_task(fleet.ask(1, POISON))
        await fleet.until(lambda: fleet.state_of(0) is State.OPEN)
        assert fleet.dispatcher.core.faults.breakers[WorkerId("worker-0")].reason is Reason.STALL
        fleet.faults[0].stall_token = None
        fleet.faults[0].running.set()
        assert await asking is None
