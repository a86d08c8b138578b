"""Runs the parts one after the other inside the budget, prints their lines and keeps them.

Knows the order and the estimates; what a part measures is its own module's.
"""

import importlib
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
import triton

from bench.gpu import results, sizes
from bench.gpu.attention_rows import decode_row, prefill_row
from bench.gpu.budget import Budget
from bench.gpu.comparing import BitsDiffer
from bench.gpu.context import BenchContext
from bench.gpu.correctness import CHECKS
from bench.gpu.goals import Row, Skipped
from bench.gpu.linear_rows import w4a16_rows, w8a8_row
from bench.gpu.timing import EventTimer, OnceTimer
from services.domain.kv_layout import KvFormat
from worker.kernels.tuning_labels import tuning_labels


class Runner:
    """One run: what is left of its time and what it found."""

    def __init__(self, run: results.Run, budget: Budget, *, only: str) -> None:
        self._run, self._budget, self._only = run, budget, only

    def part(
        self,
        name: str,
        estimate_s: float,
        measure: Callable[[], Iterable[Row]],
        *,
        rests_on: Sequence[str] = (),
    ) -> None:
        """Run a part unless it would not end in time; an error is a line and the next part begins.

        Args:
            name: Of the part.
            estimate_s: Seconds that it takes, compilation included.
            measure: Does it; rows that come one by one are kept where a later one fails.
            rests_on: Checks without which it would time the wrong work.
        """
        if self._only not in name:
            return
        wrong = [check for check in rests_on if check in self._run.wrong]
        refusal = f"wrong: {', '.join(wrong)}" if wrong else self._budget.refusal(estimate_s)
        if refusal is not None:
            self._skip(Skipped(name=name, reason=refusal))
        else:
            self._measure(name, measure)
        self._run.write()

    def check(self, name: str, run: Callable[[], None]) -> None:
        """Run a comparison and keep what it says, on disk too: the next one may hang."""
        self._compare(name, run)
        self._run.write()

    def _compare(self, name: str, run: Callable[[], None]) -> None:
        try:
            run()
            text = "ok"
        except NotHere as exc:
            self._skip(Skipped(name=name, reason=str(exc)))
            return
        except BitsDiffer as exc:
            # What is timed is still the work.
            text = str(exc)
        except Exception as exc:
            traceback.print_exc()
            text = f"{type(exc).__name__}: {exc}"
            self._run.wrong.add(name)
        self._run.checks[name] = text
        print(f"{name}: {text}", flush=True)

    def _measure(self, name: str, measure: Callable[[], Iterable[Row]]) -> None:
        began = self._budget.spent_s
        try:
            for row in measure():
                print(row.line(), flush=True)
                self._run.rows.append(row)
        except NotHere as exc:
            self._skip(Skipped(name=name, reason=str(exc)))
            return
        except Exception as exc:
            traceback.print_exc()
            self._run.failed.append(f"{name}: {type(exc).__name__}: {exc}")
            print(f"FAILED {self._run.failed[-1]}", flush=True)
            return
        print(f"  ({name}: {self._budget.spent_s - began:.1f} s)", flush=True)

    def _skip(self, skipped: Skipped) -> None:
        self._run.skipped.append(skipped)
        print(skipped.line(), flush=True)


class NotHere(Exception):
    """Something that a part needs is not on this machine; the text says what and how to bring it."""


def run_all(
    *, is_interpreted: bool, budget_s: float, began: float, only: str, folder: Path | None
) -> results.Run:
    """Run everything and return what was found, which is also written to `folder`."""
    device = torch.device("cpu" if is_interpreted else "cuda")
    context = BenchContext(
        device=device,
        timer=OnceTimer() if is_interpreted else EventTimer(),
        sizes=sizes.TINY if is_interpreted else sizes.TABLE,
        generator=torch.Generator(device).manual_seed(0),
    )
    versions = {"torch": torch.__version__, "triton": triton.__version__, "cuda": str(torch.version.cuda)}
    chip = "interpreted" if is_interpreted else torch.cuda.get_device_name()
    run = results.Run(
        results.machine(chip, versions | tuning_labels(device)),
        results.now(),
        results.writable(folder or results.FOLDER),
    )
    budget = Budget(budget_s, lambda: time.monotonic() - began)
    print(", ".join(f"{name} {value}" for name, value in run.machine.items()), flush=True)
    runner = Runner(run, budget, only=only)
    for check in CHECKS:
        runner.check(check.name, lambda check=check: check.run(context))  # type: ignore[misc]
    for kv_format in (KvFormat.BF16, KvFormat.INT8):
        runner.check(
            f"steps {kv_format}",
            lambda f=kv_format: _module("step_check").check_steps(context, f),  # type: ignore[misc]
        )
    runner.check(
        "steps int8, norms of heads",
        lambda: _module("step_check").check_steps(_with_norms(context), KvFormat.INT8),
    )
    print(f"  (correctness: {budget.spent_s:.1f} s)", flush=True)
    runner.part("rates", 5, lambda: _rates(context, run))
    for kv_format in (KvFormat.BF16, KvFormat.INT8):
        name = f"decode attention {kv_format}"
        runner.part(name, 8, lambda f=kv_format: [decode_row(context, f)], rests_on=[name])  # type: ignore[misc]
    runner.part("prefill attention", 8, lambda: [prefill_row(context)], rests_on=["ragged attention bf16"])
    runner.part("w4a16", 12, lambda: w4a16_rows(context), rests_on=["w4a16"])
    runner.part("w8a8", 8, lambda: [w8a8_row(context)], rests_on=["w8a8"])
    _run_model(runner, context)
    runner.part(results.SERVING, 40, lambda: _serve(context, run, budget))
    print(f"{budget.spent_s:.0f} s in all; results in {run.write()}")
    return run


def _with_norms(context: BenchContext) -> BenchContext:
    """Return a run whose checked model has a norm on every head, which is joined with rotation and store."""
    model = context.sizes.checked_model
    head_dim = model["hidden_size"] // model["num_attention_heads"]
    normed = {**model, "model_type": "qwen3", "head_dim": head_dim}
    return replace(context, sizes=replace(context.sizes, checked_model=normed))


def _rates(context: BenchContext, run: results.Run) -> list[Row]:
    run.rates = {
        "copy_bytes_per_s": context.copy_rate,
        "bf16_operations_per_s": context.matrix_rate,
        "int8_operations_per_s": context.int8_rate,
    }
    print(
        f"copy {context.copy_rate / 1e9:.0f} GB/s, bf16 {context.matrix_rate / 1e12:.0f} TFLOP/s,"
        f" int8 {context.int8_rate / 1e12:.0f} TOP/s"
    )
    return []


def _run_model(runner: Runner, context: BenchContext) -> None:
    """Measure whole steps, whose modules need a few packages more than torch and triton."""
    tokens_per_s: list[float] = []

    def bf16() -> Iterable[Row]:
        rows: Iterable[Row] = _module("model_rows").bf16_rows(context, tokens_per_s.append)
        return rows

    def int4() -> list[Row]:
        if not tokens_per_s:
            raise NotHere("there is no bf16 figure to compare with")
        return [_module("model_rows").int4_row(context, tokens_per_s[0])]

    runner.part("decode step", 60, bf16, rests_on=["steps bf16"])
    runner.part("int4 against bf16", 60, int4, rests_on=["steps int8", "w4a16"])


def _serve(context: BenchContext, run: results.Run, budget: Budget) -> list[Row]:
    served = context.sizes.served
    # A worker that hangs may not take more than is left.
    served = replace(served, limit_s=min(served.limit_s, budget.left_s))
    run.serving = _module("serving").serve(served)
    print(", ".join(f"{name}: {value}" for name, value in run.serving.items()))
    return []


def _module(name: str) -> ModuleType:
    """Import what needs more packages than torch and triton, only when it is its turn."""
    try:
        return importlib.import_module(f"bench.gpu.{name}")
    except (ImportError, RuntimeError) as exc:
        # Generated code refuses an older grpcio or protobuf with a RuntimeError of its own.
        raise NotHere(
            f"{exc}; `bench/gpu.sh bring` on a machine with a network, then take build/ along"
        ) from exc
