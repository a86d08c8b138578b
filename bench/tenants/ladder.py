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
from services.domain.ids import TenantId

AGREED = Degradation(cap_output_tokens=16, cut_prompt_tokens=256, smaller_models={MODEL: "small"})
WINDOW_S = 0.5
LADDER = LadderRules(targets_s={Band.BATCH: 2.0}, rise_after_s=3.0, fall_after_s=5.0)
RULES = replace(UNBOUNDED, batch_wait_s=WINDOW_S, ladder=LADDER)
FLOOD_S, CALM_S, CALM_EVERY_S = 30.0, 200.0, 2.0
AGREES, STRICT, QUIET = "agrees", "strict", "quiet"
CALM_TOKENS = 64


class Degrading(World):
    """A world whose gateway gives who has degraded less, as far as its tenant agreed."""

    def __init__(self, rules: Rules, policy: QueuePolicy | None = None) -> None:
        self.less: Counter[tuple[str, Step]] = Counter()
        """Requests that felt a step, by tenant."""
        self.less_of_strict = 0
        """Requests whose content was less although their tenant never agreed."""
        World.__init__(self, policy or FairPolicy(), rules=rules)

    def step_of(self, tenant: str) -> Step:
        return self.core.ladder.step(MODEL, Band.BATCH, TenantId(tenant))

    def refused(self, tenant: str) -> int:
        """Return how many of a tenant's requests the ladder refused."""
        return self.less[tenant, Step.THROTTLE] + self.less[tenant, Step.REFUSE]

    def felt(self, tenant: str) -> int:
        """Return how often a tenant felt any step."""
        return sum(count for (who, _), count in self.less.items() if who == tenant)

    def _acquire(self, ask: Ask, at: float) -> None:
        policy = AGREED if ask.tenant in (AGREES, QUIET) else None
        reductions = reductions_of(policy, self.step_of(ask.tenant), MODEL)
        if reductions.smaller_model is not None:
            self.less[ask.tenant, Step.SMALLER_MODEL] += 1
            return
        cap = capped(StopParams(max_output_tokens=ask.num_output_tokens), reductions.cap_output_tokens)
        self.less[ask.tenant, Step.CAP_OUTPUT] += cap is not None
        most = reductions.cut_prompt_tokens or ask.num_prompt_tokens
        self.less[ask.tenant, Step.CUT_CONTEXT] += most < ask.num_prompt_tokens
        served = replace(
            ask,
            num_prompt_tokens=min(most, ask.num_prompt_tokens),
            num_output_tokens=ask.num_output_tokens if cap is None else int(cap.served),
        )
        self.less_of_strict += policy is None and served != ask
        super()._acquire(served, at)

    def _submit(self, output: Placed, at: float) -> None:
        # Nobody else comes within the window of a calm one: only a step can have shut it before its time.
        is_calm = output.acquire.num_prompt_tokens == CALM_TOKENS and at > FLOOD_S
        self.less[output.acquire.tenant, Step.BATCH_WAIT] += is_calm and output.waited_s < WINDOW_S
        super()._submit(output, at)

    def _handle(self, outputs: Iterable[Output]) -> None:
        outputs = list(outputs)
        for one in outputs:
            if isinstance(one, Rejected) and isinstance(one.error, Overloaded):
                self.less[one.acquire.tenant, self.step_of(one.acquire.tenant)] += 1
        super()._handle(outputs)


async def every_step(is_on: bool) -> Outcome:
    """Let two tenants flood a band for half a minute, then one of them ask now and then: it felt each step,
    content only as it agreed, and in the end nobody feels any."""
    world = Degrading(RULES if is_on else replace(RULES, ladder=LadderRules()))
    for number in range(int(FLOOD_S * 10)):
        tenant = (AGREES, STRICT)[number % 2]
        ask = Ask(tenant=tenant, num_prompt_tokens=1024, num_output_tokens=256, band=Band.BATCH)
        world.ask(number / 10, ask)
    calm = Ask(tenant=AGREES, num_prompt_tokens=CALM_TOKENS, num_output_tokens=4, band=Band.BATCH)
    for number in range(int(CALM_S / CALM_EVERY_S)):
        world.ask(FLOOD_S + CALM_EVERY_S * number, calm)
    world.run_until(FLOOD_S + CALM_S)
    felt = [world.less[AGREES, step] for step in (Step.BATCH_WAIT, *list(Step)[2:5])]
    felt += [sum(world.less[who, step] for who in (AGREES, STRICT)) for step in (Step.THROTTLE, Step.REFUSE)]
    is_over = world.step_of(AGREES) is world.step_of(STRICT) is Step.NONE
    return Outcome(all(felt) and not world.less_of_strict and is_over, "/".join(map(str, felt)))


async def beside_a_flood(is_on: bool) -> Outcome:
    """Flood a band for a minute beside a tenant that asks little and agreed to get less: the flood is
    refused, the other gets all. Off: under a policy that knows no share both wait, and so both climb."""
    world = Degrading(RULES, FairPolicy() if is_on else FifoPolicy())
    flood = Ask(tenant=STRICT, num_prompt_tokens=1000, num_output_tokens=128, band=Band.BATCH)
    for number in range(600):
        world.ask(number / 10, flood)
    quiet = Ask(tenant=QUIET, num_prompt_tokens=60, num_output_tokens=20, band=Band.BATCH)
    for number in range(60):
        world.ask(number + 0.5, quiet)
    world.run_until(100.0)
    served = sum(one.ask == quiet and one.ended is not None for one in world.requests)
    holds = served == 60 and world.felt(QUIET) == 0 and world.refused(STRICT) > 0
    return Outcome(holds, f"{served}/60 whole")
