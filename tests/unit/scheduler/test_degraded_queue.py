"""What the steps of the ladder do in the scheduler: no batch wait, few requests per tenant, nobody.

A tenant climbs by itself while its requests wait, all of a band where pages are short.
"""

import random
from dataclasses import replace

import pytest

from scheduler.core.degrade import LadderRules, TenantStep
from scheduler.core.fair_queue import FairPolicy
from scheduler.core.fifo import FifoPolicy
from scheduler.core.outputs import ModelsChanged, Output, Placed, Rejected, TenantStepsChanged
from scheduler.core.policy import QueuePolicy
from scheduler.core.rules import Rules
from scheduler.core.share_queue import FairRules
from scheduler.core.state import SchedulerCore
from services.domain.degradation import Degraded, Step, degraded_of
from services.domain.errors import Overloaded
from services.domain.generation import Band
from services.domain.ids import TenantId
from tests.unit.scheduler.builders import GATEWAY, MODEL, acquire, hello, key, only, report

RULES = Rules(
    batch_wait_s=0.5,
    ladder=LadderRules(targets_s={Band.STANDARD: 1.0, Band.BATCH: 1.0}, rise_after_s=2.0, fall_after_s=5.0),
)


class Queue:
    """A core with one worker that takes nothing, looked at each second.

    Args:
        full: Its pages are all held.
    """

    def __init__(
        self, rules: Rules = RULES, policy: QueuePolicy | None = None, *, full: bool = False
    ) -> None:
        self.now = 0.0
        self.core = SchedulerCore(rules, policy or FairPolicy(), self.now)
        self.core.worker_connected(hello(), self.now)
        self.core.report(hello().worker, report(granted=0, startable=0 if full else 64), self.now)
        self.ask("first", tenant="first", band=Band.BATCH)

    def ask(
        self, request_id: str, *, tenant: str = "t", band: Band = Band.BATCH, attempt: int = 1
    ) -> list[Output]:
        wanted = acquire(request_id, tenant=tenant, band=band, attempt=attempt)
        return self.core.acquire(GATEWAY, wanted, self.now)

    def until(self, step: Step, tenant: str = "first") -> list[Output]:
        """Let time pass, as the core itself asks to be woken, until a tenant stands on `step`."""
        outputs: list[Output] = []
        while self.core.ladder.step(MODEL, Band.BATCH, TenantId(tenant)) is not step:
            due = self.core.next_wake()
            assert due is not None, "with somebody waiting the core looks again"
            self.now = max(due, self.now + 0.001)
            assert self.now < 1000
            outputs += self.core.place(self.now)
        return outputs


def refused(outputs: list[Output]) -> list[Overloaded]:
    return [one.error for one in only(Rejected, outputs) if isinstance(one.error, Overloaded)]


def test_gateways_are_told_of_each_step_once() -> None:
    outputs = Queue().until(Step.REFUSE)
    where = MODEL, Band.BATCH, TenantId("first")
    told = [(TenantStep(*where, step),) for step in list(Step)[1:]]
    assert [one.steps for one in only(TenantStepsChanged, outputs)] == told
    assert not only(ModelsChanged, outputs), "the band has not moved"


def test_gateways_are_told_of_each_step_of_a_band_once() -> None:
    told = only(ModelsChanged, Queue(full=True).until(Step.REFUSE, tenant="nobody"))
    assert {one.models[0].batch_wait_s for one in told} == {0.5}
    # Pages are short for better bands too: they follow a step behind.
    assert [one.models[0].steps[Band.BATCH] for one in told] == sorted(
        one.models[0].steps[Band.BATCH] for one in told
    )
    assert {one.models[0].steps[Band.BATCH] for one in told} == set(list(Step)[1:])


def test_a_gateway_that_connects_late_is_told_who_has_climbed() -> None:
    queue = Queue()
    queue.until(Step.CAP_OUTPUT)
    (told,) = only(TenantStepsChanged, queue.core.known_to_gateways())
    assert told.steps == (TenantStep(MODEL, Band.BATCH, TenantId("first"), Step.CAP_OUTPUT),)


@pytest.mark.parametrize(("num_each", "climbs"), [(1, True), (2, False)])
def test_many_with_one_late_request_each_move_their_band_though_its_prompt_is_more_than_a_share(
    num_each: int, climbs: bool
) -> None:
    queue = Queue(policy=FairPolicy(FairRules(quantum=10.0)))
    for number in range(5 * num_each):
        queue.ask(str(number), tenant=f"t{number % 5}")
    queue.until(Step.REFUSE, tenant="t0")
    assert (queue.core.ladder.band_step(MODEL, Band.BATCH) > Step.NONE) is climbs


@pytest.mark.parametrize("is_calm", [True, False])
def test_ten_minutes_about_the_target_move_nobody_to_and_fro(is_calm: bool) -> None:
    """Requests of two tenants keep waiting for 0.9 to 1.1 times the target, those of a third for 0.3 times.
    The control has no gap between the thresholds and takes no time."""
    hasty = LadderRules(targets_s={Band.BATCH: 1.0}, fall_at=0.999, rise_after_s=0.0, fall_after_s=0.0)
    queue = Queue(RULES if is_calm else replace(RULES, ladder=hasty))
    queue.core.abandon(key("first"), None)
    noise, moves = random.Random(3), {tenant: list[Step]() for tenant in ("one", "other", "calm")}
    for second in range(1, 601):
        queue.now = float(second)
        for tenant in moves:
            queue.core.abandon(key(f"{tenant}{second - 1}"), None)
            waited_s = 0.3 if tenant == "calm" else noise.uniform(0.9, 1.1)
            wanted = acquire(f"{tenant}{second}", tenant=tenant, band=Band.BATCH, waited_s=waited_s)
            queue.core.acquire(GATEWAY, wanted, queue.now)
        for told in only(TenantStepsChanged, queue.core.place(queue.now)):
            for one in told.steps:
                moves[one.tenant].append(one.step)
    assert not moves["calm"]
    for tenant in ("one", "other"):
        assert (moves[tenant] == list(Step)[1 : len(moves[tenant]) + 1]) is is_calm
        assert (len(moves[tenant]) > 100) is not is_calm


def test_who_has_degraded_is_not_held_back_to_be_placed_together() -> None:
    queue = Queue()
    queue.until(Step.BATCH_WAIT)
    queue.core.report(hello().worker, report(granted=8), queue.now)
    assert [one.acquire.key for one in only(Placed, queue.core.place(queue.now))] == [key("first")]
    queue.ask("degraded", tenant="first")
    assert only(Placed, queue.core.place(queue.now))
    queue.ask("not degraded", tenant="neighbour")
    assert not only(Placed, queue.core.place(queue.now)), "the control waits for its window"
    queue.ask("degraded again", tenant="first")
    assert len(only(Placed, queue.core.place(queue.now))) == 2, "which one that does not wait has shut"


@pytest.mark.parametrize("policy", [FairPolicy, FifoPolicy])
def test_a_throttled_tenant_has_one_request_waiting(policy: type[QueuePolicy]) -> None:
    queue = Queue(policy=policy())
    assert not refused([*queue.ask("1"), *queue.ask("2")]), "the control: nothing is throttled yet"
    queue.until(Step.THROTTLE, tenant="t")
    (error,) = refused(queue.ask("3"))
    whose = "this tenant in its batch band"
    what = f"2 requests of this tenant wait, m is overloaded and {whose} degraded to step throttle"
    assert error.message == what
    assert (error.detail.retry_after_s, error.detail.quota) == (5.0, "degradation/m/batch")
    assert degraded_of(error.detail.metadata) == Degraded(Step.THROTTLE, "3", "1")
    assert not refused(queue.ask("4", tenant="quiet"))
    assert not refused(queue.ask("5", band=Band.STANDARD)), "a better band goes on"
    queue.core.abandon(key("1"), None)
    assert refused(queue.ask("6")), "one of its requests still waits"
    queue.core.abandon(key("2"), None)
    assert not refused(queue.ask("7")), "none of its requests waits any more"


@pytest.mark.parametrize("step", [Step.THROTTLE, Step.REFUSE])
def test_a_refusal_tells_where_it_would_have_stood_and_how_long_that_takes(step: Step) -> None:
    queue = Queue()
    for count in range(39):
        queue.ask(str(count), tenant="first")
    queue.until(step)
    (unknown,) = refused(queue.ask("before any was placed", tenant="first"))
    assert unknown.detail.metadata["position"] == "41", "40 wait in the band and those before it"
    assert "expected_wait_ms" not in unknown.detail.metadata, "nobody knows yet"
    for count in range(1, 13):
        queue.now += 0.25
        queue.core.report(hello().worker, report(granted=count), queue.now)
        queue.core.place(queue.now)
    (error,) = refused(queue.ask("after", tenant="first"))
    assert error.detail.metadata["position"] == "29"
    wait_ms = int(error.detail.metadata["expected_wait_ms"])
    assert wait_ms == pytest.approx(29 * 250, rel=0.2), "29 at 4 a second"


@pytest.mark.parametrize("policy", [FairPolicy, FifoPolicy])
@pytest.mark.parametrize(("attempt", "is_refused"), [(1, True), (2, False)])
def test_at_the_top_nothing_new_of_who_waits_is_let_in_but_further_attempts_are(
    policy: type[QueuePolicy], attempt: int, is_refused: bool
) -> None:
    queue = Queue(policy=policy())
    queue.until(Step.REFUSE)
    assert bool(refused(queue.ask("new", tenant="first", attempt=attempt))) is is_refused


@pytest.mark.parametrize("step", list(Step)[1:])
def test_of_two_tenants_in_one_overloaded_band_who_floods_climbs_and_the_other_feels_nothing(
    step: Step,
) -> None:
    queue = Queue(policy=FairPolicy())
    for number in range(200):
        queue.ask(f"flood{number}", tenant="first")
    queue.until(step)
    assert queue.core.ladder.step(MODEL, Band.BATCH, TenantId("quiet")) is Step.NONE
    assert not refused([*queue.ask("one", tenant="quiet"), *queue.ask("two", tenant="quiet")])
    assert bool(refused(queue.ask("more", tenant="first"))) is (step >= Step.THROTTLE)
    assert not queue.core.ladder.steps(MODEL)


@pytest.mark.parametrize("step", [Step.THROTTLE, Step.REFUSE])
@pytest.mark.parametrize(("policy", "is_spared"), [(FairPolicy, True), (FifoPolicy, False)])
def test_who_asks_within_its_share_of_a_late_band_is_let_in_until_it_too_waits_for_the_target(
    policy: type[QueuePolicy], is_spared: bool, step: Step
) -> None:
    queue = Queue(policy=policy(), full=True)
    queue.until(step, tenant="quiet")
    queue.ask("one", tenant="quiet")
    assert bool(refused(queue.ask("two", tenant="quiet"))) is not is_spared
    queue.now += 1.0
    assert refused(queue.ask("three", tenant="quiet"))


def test_a_fresh_flood_is_refused_once_more_than_its_share_waits() -> None:
    queue = Queue(full=True)
    queue.until(Step.REFUSE, tenant="fresh")
    let_in = next(n for n in range(1000) if refused(queue.ask(str(n), tenant="fresh")))
    assert let_in == 4096 // 32 + 1


def test_at_the_top_of_a_band_a_tenant_within_its_share_is_let_in_where_nothing_waits_any_more() -> None:
    queue = Queue(full=True)
    queue.until(Step.REFUSE, tenant="quiet")
    queue.core.abandon(key("first"), None)
    assert not refused(queue.ask("new", tenant="quiet"))


def test_when_the_queue_is_gone_everybody_is_let_in_again() -> None:
    queue = Queue()
    queue.until(Step.REFUSE)
    queue.core.abandon(key("first"), None)
    told = only(TenantStepsChanged, queue.until(Step.NONE))
    assert [one.step for one in told[-1].steps] == [Step.NONE]
    assert not only(TenantStepsChanged, queue.core.known_to_gateways())
    assert queue.core.next_wake() is None
    assert not refused(queue.ask("new"))


def test_without_targets_nobody_is_refused_however_long_the_queue_waits() -> None:
    queue = Queue(Rules())
    for queue.now in range(1000):
        queue.core.place(queue.now)
    assert not refused(queue.ask("late"))
