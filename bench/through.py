"""What the services cost a caller: `python -m bench.through`.

The same closed loop of prompts (`bench.peers`' ss16) on the step loop alone, in this process, and through the
HTTP door of a whole suite; rounds are interleaved, and the ratio is that of the medians. The engine alone has
a worker's own settings and no stream, gateway, tokeniser or client beside it.
"""

import argparse
import asyncio
import json
import queue
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench.peers import load
from bench.peers.cells import CELLS
from bench.peers.servers import MODEL, running, server_of
from services.artifacts.fetch import resolve
from services.domain.generation import Band, Limits, SamplingParams, StopParams
from services.domain.ids import RequestId, RequestKey, TenantId
from services.domain.kv_layout import KvFormat
from worker.engine.commands import Submit
from worker.engine.config import EngineConfig
from worker.engine.outputs import Ended, StepOutputs
from worker.engine.step_scheduler import StepScheduler
from worker.executors.native_executor import NativeOptions, load_native_executor
from worker.step_loop import StepLoop

NUM_PAGES = 4096
LIMIT_S = 600.0


class EngineAlone:
    """A closed loop of requests on a step loop, each begun when another one ends."""

    def __init__(self, gguf: Path, cell: load.Cell) -> None:
        executor = load_native_executor(
            gguf, model_name=MODEL, options=NativeOptions(kv_format=KvFormat.INT8)
        )
        executor.allocate(NUM_PAGES)
        profile = executor.profile
        config = EngineConfig(
            num_pages=NUM_PAGES,
            max_context_tokens=profile.max_context_tokens,
            vocab_size=profile.vocab_size,
        )
        self._cell, self._executor = cell, executor
        self._todo: list[list[int]] = []
        self._began: dict[int, float] = {}
        self._first: dict[int, float] = {}
        self._sent: list[load.Sent] = []
        self._end: queue.Queue[BaseException | None] = queue.Queue()
        self._loop = StepLoop(StepScheduler(config), executor, on_step=self._on_step, on_fault=self._end.put)
        self._next_handle = 1

    def run(self, seed: int) -> load.Figures:
        """Serve the cell's requests once, and reduce what came as `bench.peers` does."""
        self._todo = load.prompts(self._cell, seed)[::-1]
        self._loop.start()
        for _ in range(self._cell.concurrency):
            self._submit()
        fault = self._end.get(timeout=LIMIT_S)
        self._loop.stop()
        self._executor.close()
        if fault is not None:
            raise fault
        return load.reduce(self._sent, self._cell.concurrency)

    def _submit(self) -> None:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._began[handle] = time.perf_counter()
        self._loop.post(
            Submit(
                handle=handle,
                key=RequestKey(RequestId(f"r{handle}"), 1),
                tenant=TenantId("local"),
                band=Band.STANDARD,
                prompt_ids=self._todo.pop(),
                sampling=SamplingParams(temperature=0),
                stop=StopParams(max_output_tokens=self._cell.output_tokens),
                limits=Limits(),
            )
        )

    def _on_step(self, outputs: StepOutputs) -> None:
        now = time.perf_counter()
        for handle in outputs.tokens.handles:
            self._first.setdefault(int(handle), now)
        for event in outputs.events:
            if isinstance(event, Ended):
                self._ended(event.handle, now)

    def _ended(self, handle: int, now: float) -> None:
        low, _ = self._cell.prompt_tokens
        self._sent.append(
            load.Sent(self._began[handle], self._first[handle], now, low, self._cell.output_tokens)
        )
        if self._todo:
            self._submit()
        elif len(self._sent) == self._cell.requests:
            self._end.put(None)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each run, and the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved runs of both [3]")
    parser.add_argument("--requests", type=int, default=320, help="requests of each run [320]")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args(argv)
    cell, gguf = replace(CELLS["ss16"], requests=args.requests), resolve(MODEL)
    alone, through = [], []
    with tempfile.TemporaryDirectory() as name:
        server = server_of("quire", gguf, Path(name))
        for seed in range(args.rounds):
            alone.append(EngineAlone(gguf, cell).run(seed))
            print(f"engine alone   {alone[-1].output_tokens_per_s:7.1f} output tok/s", flush=True)
            with running(server, Path(name) / "server.log"):
                asyncio.run(load.run(server.url, server.model, replace(cell, requests=4), seed=10_000))
                through.append(asyncio.run(load.run(server.url, server.model, cell, seed=seed)))
            print(f"through it all {through[-1].output_tokens_per_s:7.1f} output tok/s", flush=True)
    ratio = _median(through) / _median(alone)
    print(f"through all processes against the engine alone: {ratio:.1%} (at least 85%, aim 93%)")
    if args.json:
        runs = {"alone": [asdict(run) for run in alone], "through": [asdict(run) for run in through]}
        args.json.write_text(json.dumps(runs, indent=1))


def _median(runs: Sequence[load.Figures]) -> float:
    return statistics.median(run.output_tokens_per_s for run in runs)


if __name__ == "__main__":
    main()
