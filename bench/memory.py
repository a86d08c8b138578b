"""How near `quire plan` is to what a worker takes: `python -m bench.memory MODEL ...`.

For each model a suite with one native worker whose KV pool is the plan's. As many requests as the plan has
together, each with a prompt of its own, touch every page, and one is scored (`echo`) beside the others; then
the worker's resident memory stands beside the plan without its headroom, and what it takes besides weights
and KV. `--concurrency 64` is 64k tokens of KV. Exits 1 where a plan is more than 5 % off.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.suite import PORT_OFFSET, suite
from services.client import AsyncClient

PROMPT_TOKENS, OUTPUT_TOKENS, CONTEXT = 992, 32, 2048
LIMIT_S = 600.0
"""Of one request: only for failure."""
LARGEST_ERROR = 0.05
"""Of what a worker uses: how far `quire plan` may be off."""
PARTS = ("weight", "kv", "activation", "logits", "table", "process")


def planned(model: str, concurrency: int) -> Mapping[str, int]:
    """Return what `quire plan` says of the workload that `used` runs."""
    command = [sys.executable, "-m", "services.cli", "plan", model, "--memory", "1000GB", "--kv", "int8"]
    command += ["--context", str(CONTEXT), "--prompt", str(PROMPT_TOKENS), "--output", str(OUTPUT_TOKENS)]
    command += ["--concurrency", str(concurrency), "--json"]
    found: dict[str, int] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def used(model: str, concurrency: int, kv_bytes: int, *, port_offset: int = PORT_OFFSET) -> int:
    """Return the resident bytes of a worker that has used every page of its pool once.

    Raises:
        RuntimeError: The suite did not come up, e.g. where somebody holds one of its ports.
    """
    config = f'[worker]\nkv_memory = "{kv_bytes}"\nmax_context_tokens = {CONTEXT}\n'
    # A busy machine may take its time for a step.
    config += f"max_sequences = {concurrency}\nstuck_after_s = 60\nrestart_after_s = 600\n"
    # Folders need a name, known models bring theirs.
    flag = f"m={model}" if Path(model).exists() else model
    with suite("--model", flag, config=config, port_offset=port_offset) as running:
        asyncio.run(_fill(running.gateway, flag.split("=")[0], concurrency))
        return int(running.named()["worker-0"].memory_info().rss)


async def _fill(target: str, name: str, concurrency: int) -> None:
    chooser = random.Random(0)
    prompts = [[chooser.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)] for _ in range(concurrency)]

    async def one(client: AsyncClient, prompt: Sequence[int], is_scored: bool = False) -> None:
        logprobs = 0 if is_scored else None
        async with client.generate(
            prompt, max_output_tokens=OUTPUT_TOKENS, ignore_eos=True, echo=is_scored, logprobs=logprobs
        ) as stream:
            async for _ in stream:
                pass

    async with AsyncClient(target, model=name, timeout_s=LIMIT_S) as client:
        await asyncio.gather(*(one(client, prompt) for prompt in prompts))
        # Those with a cached prompt decode at once, while the last prompt's rows are scored beside them.
        cached, last = prompts[:-1], prompts[-1]
        await asyncio.gather(*(one(client, prompt) for prompt in cached), one(client, last, is_scored=True))


def is_within(asked_bytes: int, used_bytes: int) -> bool:
    """Whether a plan of `asked_bytes` is as near to what was used as it must be."""
    return abs(asked_bytes - used_bytes) <= LARGEST_ERROR * used_bytes


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each model; return 1 where one of them is planned too far off."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="+", help="known name, model folder or GGUF file")
    parser.add_argument("--concurrency", type=int, default=16, help="requests of 1,024 tokens at once [16]")
    args = parser.parse_args(argv)
    missed = 0
    for model in args.model:
        plan = planned(model, args.concurrency)
        asked = plan["total_bytes"] - plan["headroom_bytes"]
        took = used(model, args.concurrency, plan["kv_bytes"])
        parts = ", ".join(f"{part} {plan[f'{part}_bytes'] / 1e6:.1f}" for part in PARTS)
        rest = took - plan["weight_bytes"] - plan["kv_bytes"]
        is_off = not is_within(asked, took)
        missed += is_off
        print(
            f"{Path(model).name:32} planned {asked / 1e6:7.1f} MB ({parts}), used {took / 1e6:7.1f} MB,"
            f" planned / used {asked / took:.3f}; used is weights + KV + {rest / 1e6:.1f} MB"
            f"{' MISSED' if is_off else ''}",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
