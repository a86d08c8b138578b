"""Side by side with what a user would pick instead: `make peers`, then `python -m bench.peers`.

Every server gets the same token ids, lengths, load and cores, through its OpenAI door, one server at a time;
rounds are interleaved and medians reported, with the share of CPU that others took meanwhile.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from bench.peers import load, servers
from bench.suite import Noise
from services.artifacts.fetch import resolve

CELLS = {
    cell.name: cell
    for cell in (
        load.Cell(name="ss1", prompt_tokens=(128, 128), output_tokens=64, concurrency=1, requests=320),
        load.Cell(name="ss16", prompt_tokens=(128, 128), output_tokens=64, concurrency=16, requests=320),
        load.Cell(name="ls16", prompt_tokens=(1024, 1024), output_tokens=32, concurrency=16, requests=64),
        load.Cell(name="ll16", prompt_tokens=(1024, 1024), output_tokens=128, concurrency=16, requests=64),
        load.Cell(
            name="sp16",
            prompt_tokens=(1088, 1088),
            output_tokens=32,
            concurrency=16,
            requests=64,
            shared_tokens=1024,
        ),
        load.Cell(name="mixed16", prompt_tokens=(32, 1500), output_tokens=64, concurrency=16, requests=64),
        load.Cell(name="equal16", prompt_tokens=(766, 766), output_tokens=64, concurrency=16, requests=64),
    )
}
"""mixed16 and equal16 carry the same tokens on average; compared with each other, ours alone."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run cells on servers and print a line for each, then medians and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", default="ss16,ss1,ls16,ll16,sp16", help=f"of {','.join(CELLS)}")
    parser.add_argument("--servers", default="quire,llama:Q4_0", help="quire, llama:KIND, vllm:DTYPE")
    parser.add_argument("--vllm-model", type=Path, help="Hugging Face folder of the model, for vllm")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved runs of every server [3]")
    parser.add_argument("--requests", type=int, help="requests in a cell instead of its own number")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args(argv)
    cells = [CELLS[name] for name in args.cells.split(",")]
    if args.requests:
        cells = [replace(cell, requests=args.requests) for cell in cells]
    found: dict[tuple[str, str], list[load.Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        chosen = [_server(name, Path(folder), args.vllm_model) for name in args.servers.split(",")]
        for round_index in range(args.rounds):
            for server in chosen:
                _run(server, cells, round_index, Path(folder), found)
    _report(chosen, cells, found)
    if args.json:
        rows = [
            {"server": server, "cell": cell, "runs": [asdict(one) for one in figures]}
            for (server, cell), figures in found.items()
        ]
        args.json.write_text(json.dumps(rows, indent=1))


def _server(name: str, folder: Path, vllm_model: Path | None) -> servers.Server:
    kind, _, detail = name.partition(":")
    if kind == "quire":
        return servers.quire(folder, *detail.split())
    if kind == "llama":
        return servers.llama(resolve(servers.MODEL), detail or "Q4_0")
    if kind == "vllm" and vllm_model is not None:
        return servers.vllm(vllm_model, detail or "bfloat16")
    raise SystemExit(f"unknown server {name}: quire, llama:KIND, or vllm:DTYPE with --vllm-model")


def _run(
    server: servers.Server,
    cells: Sequence[load.Cell],
    round_index: int,
    folder: Path,
    found: dict[tuple[str, str], list[load.Figures]],
) -> None:
    with servers.running(server, folder / "server.log") as ready_s:
        print(f"{server.name}: ready after {ready_s:.1f} s", flush=True)
        for index, cell in enumerate(cells):
            warm_up = replace(cell, requests=min(4, cell.requests))
            asyncio.run(load.run(server.url, server.model, warm_up, seed=10_000 + index))
            noise = Noise()
            own = _cpu_seconds()
            figures = asyncio.run(load.run(server.url, server.model, cell, seed=100 * round_index + index))
            foreign = noise.foreign_share(_cpu_seconds() - own)
            found.setdefault((server.name, cell.name), []).append(figures)
            print(f"  {cell.name:8} {_text(figures)}  foreign CPU {foreign:.0%}", flush=True)


def _cpu_seconds() -> float:
    """CPU seconds of this process and everything below it."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def _text(figures: load.Figures) -> str:
    return (
        f"out {figures.output_tokens_per_s:7.1f} tok/s  total {figures.total_tokens_per_s:8.1f} tok/s"
        f"  TTFT p50 {figures.ttft_p50_ms:7.0f} p99 {figures.ttft_p99_ms:7.0f} ms"
        f"  first burst {figures.burst_ttft_p50_ms:7.0f} ms  n={figures.requests}"
    )


def _median(figures: Sequence[load.Figures]) -> load.Figures:
    rows = [asdict(one) for one in figures]
    return load.Figures(**{name: statistics.median(row[name] for row in rows) for name in rows[0]})


def _report(
    chosen: Sequence[servers.Server],
    cells: Sequence[load.Cell],
    found: dict[tuple[str, str], list[load.Figures]],
) -> None:
    print("\nmedians; ratios are of the first server to each other one (TTFT: the smaller the better)")
    for cell in cells:
        ours = _median(found[chosen[0].name, cell.name])
        print(f"{cell.name:8} {chosen[0].name:16} {_text(ours)}")
        for server in chosen[1:]:
            theirs = _median(found[server.name, cell.name])
            print(
                f"{'':8} {server.name:16} {_text(theirs)}"
                f"  | out x{ours.output_tokens_per_s / theirs.output_tokens_per_s:.2f}"
                f" total x{ours.total_tokens_per_s / theirs.total_tokens_per_s:.2f}"
                f" p50 x{ours.ttft_p50_ms / theirs.ttft_p50_ms:.2f}"
                f" p99 x{ours.ttft_p99_ms / theirs.ttft_p99_ms:.2f}"
            )


if __name__ == "__main__":
    main()
