"""`quire plan`: what a model takes in memory, what fits, and what to change where it is too much."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from services.artifacts.artifact import open_artifact
from services.artifacts.errors import ArtifactError
from services.artifacts.fetch import resolve
from services.artifacts.model_folder import normalise_config, read_json
from services.chassis.config import parse_bytes
from services.chassis.fatal import ConfigError, FatalError
from services.commands.output import add_output_flags, console, print_json
from services.domain.kv_layout import PAGE_SIZES, KvFormat
from worker.engine.config import MAX_SCORED_TOKENS
from worker.executors.native.packed_size import packed_bytes
from worker.executors.weights.loader import open_model, shard_model
from worker.executors.weights.packed.scheme import read_scheme
from worker.memory_changes import changes_that_fit
from worker.memory_plan import (
    MemoryPlan,
    Setup,
    WeightStorage,
    Workload,
    nearest_storage,
    num_ranks,
    plan_memory,
)
from worker.models.errors import UnsupportedModel
from worker.models.registry import build_model
from worker.plan.op import Plan
from worker.plan.shard import CannotShard, shard

_EXIT_TOO_LITTLE = 1
_QUANTIZED = (WeightStorage.INT8, WeightStorage.INT4)
"""What `quire quantize` writes."""
_STORAGE_OF_BITS = {16: WeightStorage.BF16, 8: WeightStorage.INT8, 4: WeightStorage.INT4}


def main(argv: Sequence[str]) -> int:
    """Print the plan; exit 1 when it does not fit."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        budget = parse_bytes(args.memory)
    except ValueError as exc:
        raise ConfigError(f"--memory must be {exc}, got {args.memory!r}") from exc
    plan, max_positions, shipped = _model(args.model, args.tensor_parallel_size)
    try:
        workload = Workload(
            context_tokens=args.context or max_positions,
            prompt_tokens=args.prompt,
            output_tokens=args.output,
            concurrency=args.concurrency,
            page_size=args.page_size,
        )
    except ValueError as exc:
        raise ConfigError(f"quire plan: {exc}") from exc
    if workload.context_tokens > max_positions:
        raise ConfigError(f"--context {workload.context_tokens} is more than the model's {max_positions}")
    weights, shipped_bytes = _weights(plan, args.weights, shipped)
    setup = Setup(weights=weights, kv=KvFormat(args.kv), workload=workload, shipped_bytes=shipped_bytes)
    wanted = plan_memory(plan, setup, budget)
    changes = [] if wanted.fits else changes_that_fit(plan, setup, budget)
    if args.json:
        shared = {"ranks": num_ranks(plan), "num_kv_heads": plan.num_kv_heads}
        print_json(_as_map(wanted) | shared | {"changes": [_as_map(change) for change in changes]})
    else:
        _show(args.model, plan, wanted, changes)
    return 0 if wanted.fits else _EXIT_TOO_LITTLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quire plan",
        description="Say what a model takes in memory, and what to change where it does not fit.",
        epilog="examples:\n  quire plan smollm2-135m-instruct --memory 4GB --prompt 1500 --output 300\n"
        "  quire plan ./config.json --memory 24GB --context 4096 --concurrency 32 --weights int4 --kv int8",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="known name, model folder, GGUF file, or a config.json alone")
    parser.add_argument("--memory", required=True, help="what the worker (each rank) may take, e.g. 24GB")
    parser.add_argument(
        "--tensor-parallel-size",
        type=int,
        default=1,
        help="ranks that compute the model together, each on a GPU of its own; all figures are of one [1]",
    )
    parser.add_argument("--context", type=int, help="longest prompt + output [the model's own]")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of a typical prompt [1500]")
    parser.add_argument("--output", type=int, default=300, help="tokens of a typical answer [300]")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at once [32]")
    parser.add_argument(
        "--weights",
        choices=[*WeightStorage],
        help="[as the files hold them; for a config.json alone as its quantization_config says, or bf16]",
    )
    parser.add_argument("--kv", choices=[*KvFormat], default=KvFormat.INT8, help="KV format [int8]")
    parser.add_argument("--page-size", type=int, choices=PAGE_SIZES, default=16, help="tokens in a page [16]")
    add_output_flags(parser)
    return parser


def _weights(
    plan: Plan, wanted: str | None, shipped: int | WeightStorage
) -> tuple[WeightStorage, int | None]:
    """Return how weights are stored, and their bytes where the files say them."""
    if wanted is not None:
        return WeightStorage(wanted), None
    if isinstance(shipped, WeightStorage):
        return shipped, None
    return nearest_storage(plan, shipped), shipped


def _model(name: str, size: int) -> tuple[Plan, int, int | WeightStorage]:
    """Return the plan of what `name` means, its longest context, and its weights' bytes.

    Of several ranks these are rank 0's, which has the most: biases of summed products are its alone.

    Where there are no weights, only a config.json, it says how matrices are held instead of the bytes.

    Raises:
        ConfigError: It does not divide over so many ranks.
        FatalError: It cannot be read, or is no model that we compute.
    """
    if size < 1:
        raise ConfigError(f"--tensor-parallel-size must be at least 1, got {size}")
    path = Path(name).expanduser()
    try:
        if path.name.endswith(".json") and path.is_file():
            config = normalise_config(read_json(path))
            scheme = read_scheme(config)
            # How matrices are packed changes no shape.
            config.pop("quantization_config", None)
            model = build_model(config)
            shipped: int | WeightStorage = _STORAGE_OF_BITS[scheme.widest_bits if scheme else 16]
            if size > 1:
                model = replace(model, plan=shard(model.plan, rank=0, size=size).plan)
        else:
            model, weights = open_model(open_artifact(resolve(name)))
            if size > 1:
                model, weights = shard_model(model, weights, rank=0, size=size)
            shipped = packed_bytes(model.plan, weights)
    except CannotShard as exc:
        raise ConfigError(f"--tensor-parallel-size {size}: {exc}") from exc
    except (ArtifactError, UnsupportedModel) as exc:
        raise FatalError(f"{name}: {exc}" if isinstance(exc, UnsupportedModel) else str(exc)) from exc
    except (OSError, ValueError) as exc:
        raise FatalError(f"{path}: not a readable config.json ({exc})") from exc
    return model.plan, model.config.max_positions, shipped


def _show(model: str, plan: Plan, wanted: MemoryPlan, changes: Sequence[MemoryPlan]) -> None:
    setup, load = wanted.setup, wanted.setup.workload
    screen = console()
    ranks = num_ranks(plan)
    table = Table("what", "takes", "how", box=None, pad_edge=False)
    held = str(setup.weights) if setup.shipped_bytes is None else "as the files hold them"
    table.add_row(
        "weights", _size(wanted.weight_bytes), held if ranks == 1 else f"{held}, of each of {ranks} ranks"
    )
    table.add_row(
        "KV",
        _size(wanted.kv_bytes),
        f"{setup.kv}, {load.concurrency} x {load.prompt_tokens + load.output_tokens} tokens,"
        f" at least one of {load.context_tokens}"
        + ("" if ranks == 1 else f", {plan.num_kv_heads} key-value heads a rank"),
    )
    table.add_row("activations", _size(wanted.activation_bytes), f"steps of {load.step_tokens} tokens")
    table.add_row(
        "logits",
        _size(wanted.logits_bytes),
        f"{load.concurrency} requests, {MAX_SCORED_TOKENS} scored tokens",
    )
    table.add_row("rotations", _size(wanted.table_bytes), f"{load.context_tokens} positions")
    table.add_row("process", _size(wanted.process_bytes), "before the model")
    table.add_row("headroom", _size(wanted.headroom_bytes), "12.5 % of all of it")
    table.add_row("together", _size(wanted.total_bytes), f"of {_size(wanted.budget_bytes)}")
    screen.print(table)
    screen.print(_verdict(wanted))
    for index, change in enumerate(changes):
        screen.print(f"{'it fits with' if not index else 'or with'} {_difference(model, setup, change)}")
    if not wanted.fits and not changes:
        screen.print("no format, context or concurrency makes it fit: take a smaller model or more memory")


def _verdict(wanted: MemoryPlan) -> str:
    load = wanted.setup.workload
    length = load.prompt_tokens + load.output_tokens
    if wanted.fits:
        return f"fits: {wanted.num_sequences} requests of {length} tokens at once"
    return (
        f"does not fit: {load.concurrency} requests of {length} tokens are wanted,"
        f" {wanted.num_sequences} fit; {_size(wanted.total_bytes - wanted.budget_bytes)} are missing"
    )


def _difference(model: str, now: Setup, change: MemoryPlan) -> str:
    """Say what differs as flags of this command, and how a person gets there."""
    then, old_load, load = change.setup, now.workload, change.setup.workload
    # The worker has no flag for weights: it computes with what the files hold.
    source = "MODEL" if model.endswith(".json") else model
    stored = f"quire quantize {source} --to {then.weights} -o OUT"
    if then.weights not in _QUANTIZED:
        stored = f"weights stored in {then.weights}"
    parts = [
        (f"{flag} {new}", way)
        for flag, old, new, way in (
            ("--kv", now.kv, then.kv, f"a worker's --kv-format {then.kv}"),
            ("--weights", now.weights, then.weights, stored),
            (
                "--concurrency",
                old_load.concurrency,
                load.concurrency,
                f"a worker's --max-sequences {load.concurrency}",
            ),
            (
                "--context",
                old_load.context_tokens,
                load.context_tokens,
                f"a worker's --max-context-tokens {load.context_tokens}",
            ),
        )
        if old != new
    ]
    flags, ways = zip(*parts, strict=True)
    return f"{' '.join(flags)} ({_size(change.total_bytes)}): {', '.join(ways)}"


def _as_map(found: MemoryPlan) -> dict[str, object]:
    load = found.setup.workload
    return {
        "fits": found.fits,
        "weights": found.setup.weights if found.setup.shipped_bytes is None else "shipped",
        "kv": found.setup.kv,
        "context_tokens": load.context_tokens,
        "concurrency": load.concurrency,
        "num_sequences": found.num_sequences,
        "weight_bytes": found.weight_bytes,
        "kv_bytes": found.kv_bytes,
        "activation_bytes": found.activation_bytes,
        "logits_bytes": found.logits_bytes,
        "table_bytes": found.table_bytes,
        "process_bytes": found.process_bytes,
        "headroom_bytes": found.headroom_bytes,
        "total_bytes": found.total_bytes,
        "budget_bytes": found.budget_bytes,
    }


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.0f} MB"
