"""What a worker's own work on a step costs, by part: `python -m bench.step`.

Decoding sequences in one process and one thread over a sim that does not sleep: draw, take in, plan on, build
the batch, tell, split by gateway, write the message, count. The device waits for `take in`, `plan on` and
`batch` alone; what follows is done while the next step computes. CPU-microseconds per row, medians over
repeats; no threads, streams or event loop, whose cost `bench.overhead` shows.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from operator import sub

from services.chassis.metrics import Metrics
from services.domain.generation import Band, Limits, SamplingParams, StopParams
from services.domain.ids import RequestId, RequestKey, TenantId
from worker.engine.batch_builder import build_batch
from worker.engine.commands import Submit
from worker.engine.config import EngineConfig
from worker.engine.step_scheduler import StepScheduler
from worker.executors.sim import SimConfig, SimExecutor
from worker.gateway_step import SessionId, handle_in, split
from worker.service import _numbered
from worker.telemetry import StepMetrics

PARTS = ("draw", "take in", "plan on", "batch", "tell", "split", "message", "metrics")


def measure(num_rows: int, num_steps: int, num_gateways: int, pause_s: float = 0.0) -> list[float]:
    """Return the CPU-seconds of each part over `num_steps` steps of `num_rows` decodes."""
    executor = SimExecutor(SimConfig(time_scale=0))
    config = EngineConfig(
        num_pages=num_rows * (num_steps // 16 + 4),
        max_context_tokens=num_steps + 64,
        vocab_size=32_000,
        max_sequences=num_rows,
        max_step_tokens=4096,
        max_prefill_tokens=4096,
    )
    executor.allocate(config.num_pages)
    scheduler = StepScheduler(config)
    metrics = StepMetrics(Metrics())
    for index in range(num_rows):
        scheduler.post(_submit(index, num_steps + 8, SessionId(1 + index % num_gateways)))
    spent = [0.0] * len(PARTS)
    clock = time.thread_time
    # The first steps start the sequences and prefill.
    for step in range(3):
        plan = scheduler.plan(float(step))
        scheduler.apply(plan, executor.execute(build_batch(plan)), float(step))
    plan = scheduler.plan(3.0)
    batch = build_batch(plan)
    for step in range(3, num_steps + 3):
        time.sleep(pause_s)
        marks = [clock()]
        result = executor.execute(batch)
        marks.append(clock())
        scheduler.take_in(plan, result, float(step))
        marks.append(clock())
        planned = scheduler.plan_on(float(step))
        assert planned is not None, "nobody starts or ends any more"
        marks.append(clock())
        batch = build_batch(planned)
        marks.append(clock())
        outputs = scheduler.tell(plan, float(step), 0.01)
        marks.append(clock())
        parts = split(outputs)
        marks.append(clock())
        for part in parts.values():
            _numbered(step, part).SerializeToString()
        marks.append(clock())
        metrics.on_step(outputs)
        marks.append(clock())
        plan = planned
        spent = [sum(part) for part in zip(spent, map(sub, marks[1:], marks), strict=True)]
    return spent


def _submit(index: int, max_output: int, session: SessionId) -> Submit:
    return Submit(
        handle=handle_in(session, index),
        key=RequestKey(RequestId(f"r{index}"), 1),
        tenant=TenantId("local"),
        band=Band.STANDARD,
        prompt_ids=[1000 + index] * 32,
        sampling=SamplingParams(),
        stop=StopParams(max_output_tokens=max_output),
        limits=Limits(),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64, help="decoding sequences [64]")
    parser.add_argument("--steps", type=int, default=400, help="steps of each repeat [400]")
    parser.add_argument("--gateways", type=int, default=1, help="gateways they belong to [1]")
    parser.add_argument("--pause-ms", type=float, default=6.0, help="a device's time between steps [6]")
    parser.add_argument("--repeats", type=int, default=7, help="of which the median counts [7]")
    args = parser.parse_args(argv)
    runs = [measure(args.rows, args.steps, args.gateways, args.pause_ms / 1000) for _ in range(args.repeats)]
    scale = 1e6 / (args.rows * args.steps)
    for name, values in zip(PARTS, zip(*runs, strict=True), strict=True):
        print(f"{name:8} {statistics.median(values) * scale:6.2f} us per row")
    whole = statistics.median(sum(run) for run in runs) * scale
    print(f"{'all':8} {whole:6.2f} us per row = CPU-milliseconds per 1,000 rows")


if __name__ == "__main__":
    main()
