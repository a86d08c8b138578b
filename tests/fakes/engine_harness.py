"""Drives a real step scheduler over a KV-checking executor in virtual time, and remembers what it says."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from services.domain.generation import Band, FinishReason, Limits, SamplingParams, StopParams
from services.domain.ids import RequestId, RequestKey, TenantId
from tests.fakes.kv_checking_executor import KvCheckingExecutor
from worker.engine.batch import SampleRow, TopLogprobs
from worker.engine.batch_builder import build_batch
from worker.engine.commands import Submit
from worker.engine.config import EngineConfig
from worker.engine.outputs import ChoiceEnded, Ended, PromptScored, Refused, Started, StepOutputs
from worker.engine.step_plan import StepPlan
from worker.engine.step_scheduler import StepScheduler
from worker.engine.step_tokens import StepTokens
from worker.executors.sim import SimConfig

STEP_S = 0.01


def engine_config(**changes: int) -> EngineConfig:
    """A small engine; change what the test is about."""
    values: dict[str, int] = {
        "num_pages": 64,
        "max_context_tokens": 1024,
        "vocab_size": 1000,
        "max_sequences": 8,
        "max_step_tokens": 64,
        "max_prefill_tokens": 32,
    }
    return EngineConfig(**(values | changes))


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    """A prompt that shares no block with those of other seeds."""
    return [(7 * position + 31 * seed + seed * seed) % 997 for position in range(num_tokens)]


def submit(
    handle: int,
    prompt_ids: Sequence[int],
    *,
    max_output: int = 8,
    min_output: int = 0,
    stop_ids: Sequence[int] = (),
    tenant: str = "a",
    band: Band = Band.STANDARD,
    n: int = 1,
    request_id: str | None = None,
    attempt: int = 1,
    limits: Limits | None = None,
    sampling: SamplingParams | None = None,
    output_ids: tuple[Sequence[int], ...] = (),
    cache_opt_out: bool = False,
    num_prompt_logprobs: int | None = None,
) -> Submit:
    """A Submit with the rest filled in; the salt is the tenant's."""
    return Submit(
        handle=handle,
        key=RequestKey(RequestId(request_id or f"r{handle}"), attempt),
        tenant=TenantId(tenant),
        band=band,
        prompt_ids=prompt_ids,
        num_choices=n,
        output_ids=output_ids,
        salt=tenant.encode(),
        sampling=sampling or SamplingParams(),
        stop=StopParams(
            max_output_tokens=max_output, min_output_tokens=min_output, stop_token_ids=frozenset(stop_ids)
        ),
        limits=limits or Limits(),
        cache_opt_out=cache_opt_out,
        num_prompt_logprobs=num_prompt_logprobs,
    )


def kv_checking_config(page_size: int) -> SimConfig:
    """A sim that does not wait, with pages of `page_size` tokens."""
    return SimConfig(vocab_size=1000, time_scale=0, page_size=page_size)


def rows_of(tokens: StepTokens) -> Iterator[tuple[int, int, int, list[int]]]:
    """Yield (handle, choice, first position, ids) of each row."""
    start = 0
    columns = (tokens.handles, tokens.choices, tokens.first_positions, tokens.counts)
    for handle, choice, first_position, count in zip(*columns, strict=True):
        yield handle, choice, first_position, tokens.token_ids[start : start + count]
        start += count
    assert start == len(tokens.token_ids)
    assert len(tokens.logprobs) in (0, start)


class EngineHarness:
    """One engine, step by step.

    Args:
        plans_on: Each step is told while the next one computes, where that one can be planned before.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        executor: KvCheckingExecutor | None = None,
        *,
        plans_on: bool = False,
    ) -> None:
        self.plans_on = plans_on
        self.num_planned_on = 0
        self._planned: StepPlan | None = None
        self._untold: tuple[StepPlan, float] | None = None
        self.config = config or engine_config()
        self.scheduler = StepScheduler(self.config)
        self.executor = executor or KvCheckingExecutor(kv_checking_config(self.config.page_size))
        self.executor.allocate(self.config.num_pages)
        self.now = 0.0
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.token_times: dict[int, list[float]] = defaultdict(list)
        self.scores: dict[int, list[float]] = defaultdict(list)
        self.tops: dict[int, list[TopLogprobs]] = defaultdict(list)
        self.started: dict[int, Started] = {}
        self.ended: dict[int, Ended] = {}
        self.refused: dict[int, Refused] = {}
        self.reasons: dict[tuple[int, int], FinishReason] = {}
        self.totals: dict[str, int] = defaultdict(int)
        self.kv_events: list[object] = []
        self.last: StepOutputs | None = None

    def post(self, *commands: object) -> None:
        for command in commands:
            self.scheduler.post(command)  # type: ignore[arg-type]

    def step(self) -> StepPlan:
        """Plan, execute, take in, record, and check the ledger."""
        self.now += STEP_S
        plan = self._planned or self.scheduler.plan(self.now)
        self.scheduler.pool.check()
        plan.decodes.check()
        result = self.executor.execute(build_batch(plan), self._tell) if plan.num_rows else None
        self.scheduler.take_in(plan, result, self.now)
        self._untold = plan, self.now
        self._planned = self.scheduler.plan_on(self.now) if self.plans_on else None
        if self._planned is None:
            self._tell()
        else:
            self.num_planned_on += 1
        self.scheduler.pool.check()
        plan.decodes.check()
        return plan

    def _tell(self) -> None:
        if self._untold is not None:
            self.record(self.scheduler.tell(*self._untold, STEP_S))
            self._untold = None

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def run(self, max_steps: int = 5000) -> int:
        """Step until nothing is live; return the number of steps."""
        for count in range(max_steps):
            if self.scheduler.num_live == 0 and count > 0:
                return count
            self.step()
        raise AssertionError(f"still {self.scheduler.num_live} live after {max_steps} steps")

    def record(self, outputs: StepOutputs) -> None:
        self.last = outputs
        for handle, choice, first_position, token_ids in rows_of(outputs.tokens):
            key = (handle, choice)
            assert key not in self.reasons, "no token after the choice's end"
            assert handle not in self.ended, "no token after the request's end"
            assert first_position == len(self.tokens[key]), "positions have no gap and no repeat"
            self.tokens[key] += token_ids
            self.token_times[handle].append(self.now)
        for event in outputs.events:
            match event:
                case Started():
                    self.started[event.handle] = event
                case Refused():
                    self.refused[event.handle] = event
                case PromptScored():
                    assert event.first_position == len(self.scores[event.handle]) + 1, "scores have no gap"
                    self.scores[event.handle] += event.logprobs
                    self.tops[event.handle] += event.tops
                case ChoiceEnded():
                    assert (event.handle, event.choice) not in self.reasons, "one end per choice"
                    self.reasons[event.handle, event.choice] = event.reason
                case Ended():
                    assert event.handle not in self.ended, "one end per request"
                    self.ended[event.handle] = event
        stats = outputs.stats
        assert stats.free_pages + stats.cached_pages + stats.held_pages == self.config.num_pages
        assert sum(stats.states.values()) == stats.waiting + stats.running
        self.kv_events += outputs.kv_events
        self.totals["prefill"] += stats.num_prefill_tokens
        self.totals["decode"] += stats.num_decode_tokens
        self.totals["preemptions"] += stats.preemptions
        for name, count in stats.prefix_tokens.items():
            self.totals[name] += count

    def assert_idle(self) -> None:
        """Nothing is live and nobody holds anything."""
        assert self.scheduler.num_live == 0
        assert self.scheduler.pool.num_held == 0
        assert self.last is not None
        assert self.last.stats.waiting == self.last.stats.running == 0
        self.scheduler.pool.check()


def tokens_alone(*args: object, **kwargs: object) -> list[int]:
    """What the request gives with nothing else on a fresh engine."""
    engine = EngineHarness(engine_config(num_pages=256))
    engine.post(submit(1, *args, **kwargs))  # type: ignore[arg-type]
    engine.run()
    return engine.tokens[1, 0]


def drawn(executor: KvCheckingExecutor, ids: list[int], choice: int, count: int) -> list[int]:
    """Draw a choice's tokens one by one, without any engine."""
    output: list[int] = []
    for position in range(count):
        row = SampleRow(
            params=SamplingParams(), choice=choice, position=position, prompt_ids=ids, output_ids=output
        )
        output.append(int(executor.sim.draw([row]).token_ids[0]))
    return output
