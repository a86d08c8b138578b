"""Side by side with what a user would pick instead: `make peers`, then `python -m bench.peers`.

First the quality of what is timed, over at least 1,000 positions. Then every server gets the same token ids,
lengths, load and cores, through its OpenAI door, one server at a time; rounds are interleaved and medians
reported, with the share of CPU that others took meanwhile. A peer that is not installed or cannot run here
is named in the table, with the reason. Exits 1 when the quality fails or ours gave no figure.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from bench.peers import load, quality, table
from bench.peers.cells import CELLS, OURS_ALONE
from bench.peers.servers import MODEL, Server, Unavailable, running, server_of
from bench.suite import Noise
from services.artifacts.fetch import resolve
from worker.quality.divergence import Divergence
from worker.quality.verdict import Thresholds

DEFAULT_SERVERS = "quire,llama:Q4_0,vllm:float32,vllm:bfloat16"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure quality, run cells on servers, and print a line for each and then the table."""
    args = _parser().parse_args(argv)
    # Told to stop, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    cells = [CELLS[name] for name in args.cells.split(",")]
    if args.requests:
        cells = [replace(cell, requests=args.requests) for cell in cells]
    with tempfile.TemporaryDirectory() as name:
        folder, gguf = Path(name), resolve(MODEL)
        chosen: list[Server] = []
        missing: dict[str, str] = {}
        for asked in args.servers.split(","):
            try:
                chosen.append(server_of(asked, gguf, folder))
            except Unavailable as exc:
                missing[asked] = str(exc)
        ours, *peers = chosen
        if ours.kv is None or any(peer.kv is not None for peer in peers):
            raise SystemExit("--servers: ours comes first, then peers")
        found = quality.measure(gguf, ours.kv)
        limits = Thresholds()
        print(quality.text(ours.kv, found, limits), flush=True)
        results = table.Results([one.name for one in chosen], unavailable=missing)
        for round_index in range(args.rounds):
            for server in chosen:
                if server.name not in results.unavailable:
                    _run(server, cells, round_index, folder / "server.log", results)
                    if args.json:
                        args.json.write_text(json.dumps(_as_map(found, results), indent=1))
    print("", *table.lines(results, [cell.name for cell in cells]), sep="\n")
    has_ours = all((ours.name, cell.name) in results.runs for cell in cells)
    return 0 if quality.holds(found, limits) and has_ours else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", default=",".join(CELLS), help="of those [all]")
    parser.add_argument(
        "--servers", default=DEFAULT_SERVERS, help=f"quire[:KV], llama:KIND, vllm:DTYPE [{DEFAULT_SERVERS}]"
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved runs of every server [3]")
    parser.add_argument("--requests", type=int, help="requests in a cell instead of its own number")
    parser.add_argument("--json", type=Path, help="write all figures to this file, after every server")
    return parser


def _run(
    server: Server,
    cells: Sequence[load.Cell],
    round_index: int,
    log: Path,
    results: table.Results,
) -> None:
    """Start a server, run its cells and end it; what cannot be measured is noted with its reason."""
    try:
        with running(server, log) as ready_s:
            print(f"{server.name}: ready after {ready_s:.1f} s", flush=True)
            for index, cell in enumerate(cells):
                if server.kv is None and cell.name in OURS_ALONE:
                    continue
                try:
                    run = _measure(server, cell, round_index, index)
                except load.LoadFailed as exc:
                    results.unavailable[f"{server.name}, {cell.name}"] = str(exc)
                    print(f"  {cell.name:8} failed: {exc}", flush=True)
                    continue
                results.runs.setdefault((server.name, cell.name), []).append(run)
                print(
                    f"  {cell.name:8} {table.text_of(run.figures)}  {run.seconds:.0f} s,"
                    f" foreign CPU {run.foreign_share:.0%}",
                    flush=True,
                )
    except Unavailable as exc:
        results.unavailable[server.name] = str(exc)
        print(f"{server.name}: unavailable: {exc}", flush=True)


def _measure(server: Server, cell: load.Cell, round_index: int, index: int) -> table.Run:
    warm_up = replace(cell, requests=min(4, cell.requests))
    asyncio.run(load.run(server.url, server.model, warm_up, seed=10_000 + index))
    noise, own, began = Noise(), _cpu_seconds(), time.monotonic()
    figures = asyncio.run(load.run(server.url, server.model, cell, seed=100 * round_index + index))
    return table.Run(figures, noise.foreign_share(_cpu_seconds() - own), time.monotonic() - began)


def _cpu_seconds() -> float:
    """CPU seconds of this process and everything below it."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def _as_map(found: Divergence, results: table.Results) -> Mapping[str, object]:
    return {
        "quality": asdict(found),
        "unavailable": results.unavailable,
        "cells": [
            {"server": server, "cell": cell, "runs": [asdict(run) for run in runs]}
            for (server, cell), runs in results.runs.items()
        ],
    }


if __name__ == "__main__":
    raise SystemExit(main())
