"""How near `quire plan` is to what a worker takes: `python -m bench.memory MODEL ...`.

For each model a suite with one native worker whose KV pool is the plan's. As many requests as the plan has
together, each with a prompt of its own, touch every page; then the worker's resident memory stands beside
the plan without its headroom.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.suite import suite
from services.client import AsyncClient

PROMPT_TOKENS, OUTPUT_TOKENS, CONCURRENCY, CONTEXT = 960, 32, 16, 2048


def planned(model: str) -> Mapping[str, int]:
    """Return what `quire plan` says of the workload that `used` runs."""
    command = [sys.executable, "-m", "services.cli", "plan", model, "--memory", "1000GB", "--kv", "int8"]
    command += ["--context", str(CONTEXT), "--prompt", str(PROMPT_TOKENS), "--output", str(OUTPUT_TOKENS)]
    command += ["--concurrency", str(CONCURRENCY), "--json"]
    found: dict[str, int] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def used(model: str, kv_bytes: int) -> int:
    """Return the resident bytes of a worker that has used every page of its pool once."""
    config = f'[worker]\nkv_memory = "{kv_bytes}"\nmax_context_tokens = {CONTEXT}\n'
    config += f"max_sequences = {CONCURRENCY}\n"
    # Folders need a name, known models bring theirs.
    flag = f"m={model}" if Path(model).exists() else model
    with suite("--model", flag, config=config) as running:
        asyncio.run(_fill(running.gateway, flag.split("=")[0]))
        return int(running.named()["worker-0"].memory_info().rss)


async def _fill(target: str, name: str) -> None:
    chooser = random.Random(0)

    async def one(client: AsyncClient) -> None:
        prompt = [chooser.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)]
        async with client.generate(prompt, max_output_tokens=OUTPUT_TOKENS, ignore_eos=True) as stream:
            async for _ in stream:
                pass

    async with AsyncClient(target, model=name) as client:
        await asyncio.gather(*(one(client) for _ in range(CONCURRENCY)))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="+", help="known name, model folder or GGUF file")
    for model in parser.parse_args(argv).model:
        plan = planned(model)
        asked = plan["total_bytes"] - plan["headroom_bytes"]
        took = used(model, plan["kv_bytes"])
        parts = ", ".join(
            f"{part} {plan[f'{part}_bytes'] / 1e6:.1f}" for part in ("weight", "kv", "activation")
        )
        print(
            f"{Path(model).name:32} planned {asked / 1e6:7.1f} MB ({parts}), used {took / 1e6:7.1f} MB,"
            f" planned / used {asked / took:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
