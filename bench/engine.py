"""How fast a step is without the rest of the suite: `python -m bench.engine`.

Decode: milliseconds of a step for batch x context x weight and KV format. Prefill: tokens per second for
prompts of a length, in steps of the worker's size. Beside each figure stand the times that reading its
weights and KV once and its multiply-adds alone take at the rates measured in the same run (`bench.roofline`).
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import psutil

from bench.roofline import Rates, measure_rates, multiply_adds
from bench.suite import Noise
from services.artifacts.fetch import resolve
from services.domain.capacity import pages_for
from services.domain.generation import SamplingParams
from services.domain.kv_layout import KvFormat
from worker.engine.batch import Batch, SampleRow
from worker.executors.native.library import Compute
from worker.executors.native_executor import NativeExecutor, NativeOptions, load_native_executor

MODEL = "smollm2-135m-instruct"
GREEDY = SamplingParams(temperature=0)


def decode_batch(num_sequences: int, context: int, page_size: int, vocab_size: int) -> Batch:
    """Return a step in which each sequence of `context` tokens makes one more."""
    width = pages_for(context, page_size)
    pages = np.arange(num_sequences * width, dtype=np.int32).reshape(num_sequences, width)
    row = SampleRow(GREEDY, 0, 1, (1,), (1,))
    return Batch(
        ids=np.arange(100, 100 + num_sequences, dtype=np.int32) % vocab_size,
        positions=np.full(num_sequences, context - 1, np.int32),
        query_start=np.arange(num_sequences + 1, dtype=np.int32),
        context_len=np.full(num_sequences, context, np.int32),
        page_table=pages,
        out_rows=np.arange(num_sequences, dtype=np.int32),
        sampling=(row,) * num_sequences,
    )


def prefill_batches(num_tokens: int, chunk: int, page_size: int, vocab_size: int) -> Iterator[Batch]:
    """Yield the steps of one prompt, `chunk` tokens each; the last gives a token."""
    table = np.arange(pages_for(num_tokens, page_size), dtype=np.int32).reshape(1, -1)
    ids = np.random.default_rng(7).integers(1000, min(40_000, vocab_size), num_tokens, dtype=np.int32)
    for start in range(0, num_tokens, chunk):
        stop = min(num_tokens, start + chunk)
        is_last = stop == num_tokens
        yield Batch(
            ids=ids[start:stop],
            positions=np.arange(start, stop, dtype=np.int32),
            query_start=np.array([0, stop - start], np.int32),
            context_len=np.array([stop], np.int32),
            page_table=table,
            out_rows=np.array([stop - start - 1] if is_last else [], np.int32),
            sampling=(SampleRow(GREEDY, 0, 0, (1,), ()),) if is_last else (),
        )


def _milliseconds(executor: NativeExecutor, batches: Sequence[Batch], repeats: int) -> float:
    """Return the median time of running all of `batches` once."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        for batch in batches:
            executor.execute(batch)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times[1:])


def _floors(
    executor: NativeExecutor, compute: Compute, batches: Sequence[Batch], rates: Rates
) -> tuple[float, float]:
    """Return the milliseconds that reading and that multiplying alone take."""
    profile = executor.profile
    pages = sum(pages_for(int(n), profile.page_size) for batch in batches for n in batch.context_len)
    num_bytes = len(batches) * profile.weight_bytes + pages * profile.page_bytes
    products = sum(multiply_adds(executor.plan, batch) for batch in batches)
    return num_bytes / rates.read_bytes * 1000, products / rates.products[compute] * 1000


def _beside(floors: tuple[float, float], ms: float) -> str:
    memory, products = floors
    bound = max(floors) / ms
    return f"  floors: memory {memory:6.2f} ms, products {products:6.2f} ms ({bound:4.0%})"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that is measured, and against what."""

    name: str
    executor: NativeExecutor
    options: NativeOptions
    rates: Rates
    repeats: int

    def decode(self, num_sequences: int, context: int) -> dict[str, Any]:
        """Measure a step in which each sequence makes one token; print the line and return the row."""
        profile = self.executor.profile
        noise, own = Noise(), psutil.Process().cpu_times()
        batch = decode_batch(num_sequences, context, profile.page_size, profile.vocab_size)
        ms = _milliseconds(self.executor, [batch], self.repeats)
        floors = _floors(self.executor, self.options.compute, [batch], self.rates)
        used = psutil.Process().cpu_times()
        foreign = noise.foreign_share(used.user + used.system - own.user - own.system)
        print(
            f"  decode {num_sequences:3} x {context:5}: {ms:7.2f} ms  {num_sequences / ms * 1000:7.0f} tok/s"
            f"{_beside(floors, ms)}  foreign CPU {foreign:.0%}",
            flush=True,
        )
        return self._row(ms, floors) | {"batch": num_sequences, "context": context}

    def prefill(self, length: int, chunk: int) -> dict[str, Any]:
        """Measure all steps of one prompt; print the line and return the row."""
        profile = self.executor.profile
        steps = list(prefill_batches(length, chunk, profile.page_size, profile.vocab_size))
        ms = _milliseconds(self.executor, steps, max(3, self.repeats // 5))
        floors = _floors(self.executor, self.options.compute, steps, self.rates)
        print(
            f"  prefill {length:5}: {ms:7.1f} ms  {length / ms * 1000:7.0f} tok/s{_beside(floors, ms)}",
            flush=True,
        )
        return self._row(ms, floors) | {"prefill": length}

    def _row(self, ms: float, floors: tuple[float, float]) -> dict[str, Any]:
        return {"model": self.name, "kv": self.options.kv_format.value, "ms": ms, "floors": floors}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=MODEL, help="known names or paths, comma between them")
    parser.add_argument("--kv", default="f32,bf16,int8", help="KV formats [f32,bf16,int8]")
    parser.add_argument("--compute", default="int8", help="int8,f32 [int8]")
    parser.add_argument("--batches", default="1,4,16,32", help="sequences in a step [1,4,16,32]")
    parser.add_argument("--contexts", default="256,1024", help="tokens of each [256,1024]")
    parser.add_argument("--prompts", default="512,1024", help="prefill lengths [512,1024]")
    parser.add_argument("--chunk", type=int, default=256, help="prefill tokens in a step [256]")
    parser.add_argument("--threads", type=int, default=len(psutil.Process().cpu_affinity() or [1]))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", help="write the figures to this file")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    args = _parser().parse_args(argv)
    batches, contexts, lengths = (
        [int(word) for word in text.split(",")] for text in (args.batches, args.contexts, args.prompts)
    )
    rates = measure_rates(args.threads)
    print(f"{args.threads} threads, memory {rates.read_bytes / 1e9:.1f} GB/s read, multiply-adds:", end="")
    print(*(f" {kind.name.lower()} {rate / 1e9:.0f} G/s" for kind, rate in rates.products.items()))
    rows = []
    for model, compute, kv in product(args.models.split(","), args.compute.split(","), args.kv.split(",")):
        options = NativeOptions(
            kv_format=KvFormat(kv), compute=Compute[compute.upper()], num_threads=args.threads
        )
        executor = load_native_executor(resolve(model), model_name=model, options=options)
        page = executor.profile.page_size
        executor.allocate(max(batches) * pages_for(max(contexts), page) + pages_for(max(lengths), page))
        kernels = sorted({use.kernel for use in executor.profile.kernels})
        print(f"{model} compute {compute} KV {kv} kernels {', '.join(kernels)}")
        subject = Subject(model, executor, options, rates, args.repeats)
        rows += [subject.decode(num, context) for num, context in product(batches, contexts)]
        rows += [subject.prefill(length, args.chunk) for length in lengths]
        executor.close()
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"memory_bytes_per_s": rates.read_bytes, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
