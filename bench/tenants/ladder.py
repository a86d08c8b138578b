"""Every step of the ladder of degradation, in virtual time: who gets less, of what, and when all get all.

The real core of the scheduler climbs, and what a step takes from a request is what the gateway's own pure
code says. A smaller model is another worker's business: what goes there is counted and leaves. Knows no text;
where an answer ends inside its cap is tested with the gateway.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from bench.tenants.check import Outcome
from bench.tenants.fleet import MODEL, UNBOUNDED, Ask, World
from gateway.core.reductions import capped, reductions_of
from scheduler.core.degrade import LadderRules
from scheduler.core.fair_queue import FairPolicy
from scheduler.core.fifo import FifoPolicy
from scheduler.core.outputs import Output, Placed, Rejected
from scheduler.core.policy import QueuePolicy
from scheduler.core.rules import Rules
from services.domain.degradation import Degradation, Step
from services.domain.errors import Overloaded
from services.domain.generation import Band, StopParams

AGREED = Degradation(cap_output_tokens=16, cut_prompt_tokens=256, smaller_models={MODEL: "small"})
WINDOW_S = 0.5
LADDER = LadderRules(targets_s={Band.BATCH: 2.0}, rise_after_s=3.0, fall_after_s=5.0)
RULES = replace(UNBOUNDED, batch_wait_s=WINDOW_S, ladder=LADDER)
FLOOD_S, CALM_S, CALM_EVERY_S = 30.0, 200.0, 2.0
AGREES, STRICT, LATE, QUIET = "agrees", "strict", "late", "quiet"


class Degrading(World):
    """A world whose gateway gives a band that has degraded less, as far as its tenant agreed."""

    def __init__(self, rules: Rules, policy: QueuePolicy | None = None) -> None:
        self.less: Counter[Step] = Counter()
        """Requests that felt a step."""
        self.refused: Counter[str] = Counter()
        """Requests that the ladder refused, by tenant."""
        self.less_of_strict = 0
        """Requests whose content was less although their tenant never agreed."""
        World.__init__(self, policy or FairPolicy(), rules=rules)

    def _acquire(self, ask: Ask, at: float) -> None:
        policy = AGREED if ask.tenant == AGREES else None
        reductions = reductions_of(policy, self.core.ladder.step(MODEL, ask.band), MODEL)
        if reductions.smaller_model is not None:
            self.less[Step.SMALLER_MODEL] += 1
            return
        stop, is_capped = capped(
            StopParams(max_output_tokens=ask.num_output_tokens), reductions.cap_output_tokens
        )
        self.less[Step.CAP_OUTPUT] += is_capped is not None
        most = reductions.cut_prompt_tokens or ask.num_prompt_tokens
        self.less[Step.CUT_CONTEXT] += most < ask.num_prompt_tokens
        served = replace(
            ask,
            num_prompt_tokens=min(most, ask.num_prompt_tokens),
            num_output_tokens=stop.max_output_tokens,
        )
        self.less_of_strict += ask.tenant != AGREES and served != ask
        super()._acquire(served, at)

    def _submit(self, output: Placed, at: float) -> None:
        # Nobody else comes within its window, so only a step can have shut it before its time.
        self.less[Step.BATCH_WAIT] += output.acquire.tenant == LATE and output.waited_s < WINDOW_S
        super()._submit(output, at)

    def _handle(self, outputs: Iterable[Output]) -> None:
        outputs = list(outputs)
        for one in outputs:
            if isinstance(one, Rejected) and isinstance(one.error, Overloaded):
                self.less[self.core.ladder.step(MODEL, one.acquire.band)] += 1
                self.refused[str(one.acquire.tenant)] += 1
        super()._handle(outputs)


async def every_step(is_on: bool) -> Outcome:
    """Flood a band for half a minute, then let requests come one by one: each step was felt, content only
    by who agreed, and in the end nobody feels any."""
    world = Degrading(RULES if is_on else replace(RULES, ladder=LadderRules()))
    for number in range(int(FLOOD_S * 10)):
        tenant = (AGREES, STRICT)[number % 2]
        ask = Ask(tenant=tenant, num_prompt_tokens=1024, num_output_tokens=256, band=Band.BATCH)
        world.ask(number / 10, ask)
    late = Ask(tenant=LATE, num_prompt_tokens=64, num_output_tokens=4, band=Band.BATCH)
    for number in range(int(CALM_S / CALM_EVERY_S)):
        world.ask(FLOOD_S + CALM_EVERY_S * number, late)
    world.run_until(FLOOD_S + CALM_S)
    felt = [world.less[step] for step in list(Step)[1:]]
    is_over = world.core.ladder.step(MODEL, Band.BATCH) is Step.NONE
    return Outcome(all(felt) and not world.less_of_strict and is_over, "/".join(map(str, felt)))


async def beside_a_flood(is_on: bool) -> Outcome:
    """Flood a band for a minute beside a tenant that asks little: the flood is refused, the other never. Off:
    under a policy that knows no share the ladder can tell nobody apart."""
    world = Degrading(RULES, FairPolicy() if is_on else FifoPolicy())
    flood = Ask(tenant=STRICT, num_prompt_tokens=1000, num_output_tokens=128, band=Band.BATCH)
    for number in range(600):
        world.ask(number / 10, flood)
    for number in range(60):
        world.ask(number + 0.5, Ask(tenant=QUIET, num_prompt_tokens=64, num_output_tokens=8, band=Band.BATCH))
    world.run_until(100.0)
    served = sum(one.ask.tenant == QUIET and one.ended is not None for one in world.requests)
    return Outcome(served == 60 and world.refused[STRICT] > 0, f"{served}/60")
