"""Static, windowed and continuous batching side by side: the worker's real step scheduler in virtual time.

For each batch size, wait window and speed of prefill and decode it prints throughput, queue time and TTFT:

    python -m bench.batching --requests 120 --rate 6

The policies differ only in when requests are handed to the scheduler:
  static      a batch of exactly the batch size is gathered, and runs until its slowest member is done
  windowed    the same, but a batch also leaves when its oldest member has waited for the window
  continuous  requests join at any step; the window gathers arrivals before they are handed over
Time is the sim executor's cost model; no clock is read, so a result is the same on every machine. Knows
nothing of processes, streams or the fleet's scheduler.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product

import numpy as np

from services.domain.generation import Band, Limits, SamplingParams, StopParams
from services.domain.ids import RequestId, RequestKey, TenantId
from worker.engine.batch import StepResult
from worker.engine.commands import Submit
from worker.engine.config import EngineConfig
from worker.engine.outputs import Ended, Started, StepOutputs
from worker.engine.step_plan import StepPlan
from worker.engine.step_scheduler import StepScheduler
from worker.executors.sim import CostModel

POLICIES = ("static", "windowed", "continuous")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of the workload."""

    handle: int
    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table, as asked for."""

    policy: str
    batch_size: int
    window_s: float
    prefill_tokens_per_s: float
    decode_sequence_s: float
    """Seconds that one more sequence adds to a decode step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One row of the table, as it came out. Times in seconds, from the arrival of a request."""

    output_tokens_per_s: float
    mean_batch: float
    queue_p50_s: float
    queue_p99_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    end_p50_s: float


def make_workload(
    num_requests: int, *, rate: float, prompt: tuple[int, int], output: tuple[int, int], seed: int
) -> list[Arrival]:
    """Return Poisson arrivals at `rate` per second with lengths drawn evenly from the two ranges."""
    rng = random.Random(seed)
    arrivals = []
    now = 0.0
    for handle in range(num_requests):
        now += rng.expovariate(rate)
        lengths = {"num_prompt_tokens": rng.randint(*prompt), "num_output_tokens": rng.randint(*output)}
        arrivals.append(Arrival(handle=handle, at_s=now, **lengths))
    return arrivals


class Gate:
    """Holds arrivals back until the policy hands them to the scheduler."""

    def __init__(self, setting: Setting, arrivals: Sequence[Arrival]) -> None:
        self._setting = setting
        self._coming = list(reversed(arrivals))
        self._waiting: list[Arrival] = []

    def release(self, now: float, num_live: int) -> list[Arrival]:
        """Return the requests to hand over now."""
        while self._coming and self._coming[-1].at_s <= now:
            self._waiting.append(self._coming.pop())
        setting = self._setting
        if not self._waiting:
            return []
        has_waited = now >= self._waiting[0].at_s + setting.window_s
        if setting.policy == "continuous":
            count = len(self._waiting) if has_waited else 0
        elif num_live:
            count = 0
        else:
            is_full = len(self._waiting) >= setting.batch_size or not self._coming
            may_leave = is_full or (setting.policy == "windowed" and has_waited)
            count = setting.batch_size if may_leave else 0
        released, self._waiting = self._waiting[:count], self._waiting[count:]
        return released

    def next_change(self) -> float:
        """Return when `release` may next give something that it does not give now."""
        times = [self._coming[-1].at_s] if self._coming else []
        if self._waiting and self._setting.policy != "static":
            times.append(self._waiting[0].at_s + self._setting.window_s)
        return min(times)


@dataclass(slots=True)
class Run:
    """What happened in one run."""

    started_at: dict[int, float] = field(default_factory=dict)
    first_token_at: dict[int, float] = field(default_factory=dict)
    ended_at: dict[int, float] = field(default_factory=dict)
    num_tokens: int = 0
    num_steps: int = 0
    num_rows: int = 0

    def record(self, outputs: StepOutputs, planned_at: float, now: float) -> None:
        self.num_tokens += len(outputs.tokens.token_ids)
        self.num_rows += outputs.stats.num_rows
        self.num_steps += outputs.stats.num_rows > 0
        for handle in outputs.tokens.handles:
            self.first_token_at.setdefault(handle, now)
        for event in outputs.events:
            if isinstance(event, Started):
                self.started_at[event.handle] = planned_at
            elif isinstance(event, Ended):
                self.ended_at[event.handle] = now


def simulate(setting: Setting, arrivals: Sequence[Arrival]) -> Measured:
    """Run the workload through the real step scheduler under one setting."""
    cost = replace(
        CostModel(),
        prefill_tokens_per_s=setting.prefill_tokens_per_s,
        decode_sequence_s=setting.decode_sequence_s,
    )
    scheduler = StepScheduler(_engine_config(setting, arrivals))
    gate = Gate(setting, arrivals)
    run = Run()
    now = 0.0
    while len(run.ended_at) < len(arrivals):
        for arrival in gate.release(now, scheduler.num_live):
            scheduler.post(_submit(arrival))
        plan = scheduler.plan(now)
        planned_at = now
        if plan.num_rows:
            now += _seconds(plan, cost)
        outputs = scheduler.apply(plan, _result(plan) if plan.num_rows else None, now)
        run.record(outputs, planned_at, now)
        if not plan.num_rows and len(run.ended_at) < len(arrivals):
            now = max(now, gate.next_change())
    return _measure(run, arrivals)


def _engine_config(setting: Setting, arrivals: Sequence[Arrival]) -> EngineConfig:
    longest = max(a.num_prompt_tokens + a.num_output_tokens for a in arrivals)
    return EngineConfig(
        num_pages=setting.batch_size * (-(-longest // 16) + 1),
        max_context_tokens=longest,
        vocab_size=1 << 20,
        max_sequences=setting.batch_size,
        max_step_tokens=512 + setting.batch_size,
        max_waiting=len(arrivals),
    )


def _submit(arrival: Arrival) -> Submit:
    # Every prompt differs from its first token on: no reuse flatters a policy.
    return Submit(
        handle=arrival.handle,
        key=RequestKey(RequestId(str(arrival.handle)), 1),
        tenant=TenantId("bench"),
        band=Band.STANDARD,
        prompt_ids=[arrival.handle] * arrival.num_prompt_tokens,
        sampling=SamplingParams(),
        stop=StopParams(max_output_tokens=arrival.num_output_tokens),
        limits=Limits(),
    )


def _seconds(plan: StepPlan, cost: CostModel) -> float:
    return cost.seconds(
        num_prefill_tokens=plan.num_prefill_tokens,
        num_decodes=plan.num_decodes,
        decode_context_tokens=int(plan.decodes.positions.sum()) + plan.num_decodes,
    )


def _result(plan: StepPlan) -> StepResult:
    count = plan.num_decodes + sum(row.samples for row in plan.prefills)
    return StepResult(
        token_ids=np.zeros(count, np.int32),
        failed=np.zeros(count, np.bool_),
        logprobs=np.zeros(count, np.float32),
        top=(None,) * count,
    )


def _measure(run: Run, arrivals: Sequence[Arrival]) -> Measured:
    def percentile(times: dict[int, float], q: float) -> float:
        return float(np.percentile([times[arrival.handle] - arrival.at_s for arrival in arrivals], q))

    return Measured(
        output_tokens_per_s=run.num_tokens / (max(run.ended_at.values()) - arrivals[0].at_s),
        mean_batch=run.num_rows / run.num_steps,
        queue_p50_s=percentile(run.started_at, 50),
        queue_p99_s=percentile(run.started_at, 99),
        ttft_p50_s=percentile(run.first_token_at, 50),
        ttft_p99_s=percentile(run.first_token_at, 99),
        end_p50_s=percentile(run.ended_at, 50),
    )


def settings(
    batch_sizes: Sequence[int],
    windows_s: Sequence[float],
    prefill: Sequence[float],
    decode_s: Sequence[float],
) -> Iterable[Setting]:
    """Return every row of the table; a static batch has no window, so it comes once."""
    for rate, seconds, size, policy in product(prefill, decode_s, batch_sizes, POLICIES):
        for window_s in windows_s[:1] if policy == "static" else windows_s:
            yield Setting(
                policy=policy,
                batch_size=size,
                window_s=window_s,
                prefill_tokens_per_s=rate,
                decode_sequence_s=seconds,
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.batching", description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--rate", type=float, default=6.0, help="arrivals per second")
    parser.add_argument("--prompt", type=int, nargs=2, default=(64, 512), metavar=("MIN", "MAX"))
    parser.add_argument("--output", type=int, nargs=2, default=(16, 128), metavar=("MIN", "MAX"))
    parser.add_argument("--batch-size", type=int, nargs="+", default=[4, 16, 32])
    parser.add_argument("--window-ms", type=float, nargs="+", default=[0, 50, 250])
    parser.add_argument("--prefill-tokens-per-s", type=float, nargs="+", default=[2000, 8000])
    parser.add_argument("--decode-ms", type=float, nargs="+", default=[0.6, 2.0], help="of each sequence")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    args = parser.parse_args(argv)
    arrivals = make_workload(
        args.requests, rate=args.rate, prompt=tuple(args.prompt), output=tuple(args.output), seed=args.seed
    )
    windows_s = [ms / 1000 for ms in args.window_ms]
    decode_s = [ms / 1000 for ms in args.decode_ms]
    if not args.json:
        print(
            f"{args.requests} requests at {args.rate}/s (Poisson, seed {args.seed}), "
            f"prompts {args.prompt[0]}..{args.prompt[1]}, outputs {args.output[0]}..{args.output[1]} tokens; "
            "seconds from arrival"
        )
        print(
            f"{'prefill':>8}{'decode':>8}{'batch':>6}{'window':>8}  {'policy':<11}{'tok/s':>8}{'rows':>6}"
            f"{'queue50':>9}{'queue99':>9}{'ttft50':>8}{'ttft99':>8}{'end50':>8}"
        )
    for setting in settings(args.batch_size, windows_s, args.prefill_tokens_per_s, decode_s):
        measured = simulate(setting, arrivals)
        if args.json:
            print(json.dumps(asdict(setting) | asdict(measured)))
        else:
            print(_line(setting, measured))
    return 0


def _line(setting: Setting, measured: Measured) -> str:
    window = "-" if setting.policy == "static" else f"{setting.window_s * 1000:.0f}ms"
    return (
        f"{setting.prefill_tokens_per_s:>8.0f}{setting.decode_sequence_s * 1000:>6.1f}ms"
        f"{setting.batch_size:>6}{window:>8}  {setting.policy:<11}"
        f"{measured.output_tokens_per_s:>8.0f}{measured.mean_batch:>6.1f}"
        f"{measured.queue_p50_s:>9.2f}{measured.queue_p99_s:>9.2f}{measured.ttft_p50_s:>8.2f}"
        f"{measured.ttft_p99_s:>8.2f}{measured.end_p50_s:>8.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
