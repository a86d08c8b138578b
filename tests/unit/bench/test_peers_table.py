"""The table of `bench.peers`: medians, ratios to the best peer, and peers that are not there."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers.load import Cell, Figures, Sent, prompts, reduce
from bench.peers.servers import Server, Unavailable, running
from bench.peers.table import Results, Run, lines

FIGURES = Figures(
    output_tokens_per_s=100.0,
    total_tokens_per_s=300.0,
    ttft_p50_ms=100.0,
    ttft_p99_ms=200.0,
    burst_ttft_p50_ms=400.0,
    requests=320,
)


def run(factor: float = 1.0, foreign_share: float = 0.0) -> Run:
    made = FIGURES.output_tokens_per_s * factor
    return Run(replace(FIGURES, output_tokens_per_s=made, ttft_p50_ms=100 / factor), foreign_share, 60.0)


def results(**runs: list[Run]) -> Results:
    found = {(name.replace("_", " "), "ss16"): some for name, some in runs.items()}
    return Results(servers=["ours", *(name for name, _ in found if name != "ours")], runs=found)


def line_of(found: Results, start: str) -> str:
    [line] = [line for line in lines(found, ["ss16"]) if line.startswith(start)]
    return line


def test_ours_is_held_against_the_best_peer_of_each_figure() -> None:
    found = results(ours=[run(3.2)], slow=[run(0.5)], fast=[run()])
    assert "x3.20 of fast (at least 2.60, aim 3.60): holds" in line_of(found, "ss16     output tok/s")
    assert "x0.31 of fast (at most 0.33, aim 0.25): holds" in line_of(found, "ss16     TTFT p50")
    found.runs["ours", "ss16"] = [run(1.5)]
    assert "x1.50 of fast (at least 2.60, aim 3.60): SHORT" in line_of(found, "ss16     output tok/s")


def test_the_median_leaves_out_runs_that_others_disturbed() -> None:
    found = results(ours=[run(1.0), run(2.0), run(9.0, foreign_share=0.5)])
    median = found.median("ours", "ss16")
    assert median is not None
    assert median.output_tokens_per_s == 150
    assert line_of(found, "ss16     ours").endswith("runs=3")
    found.runs["ours", "ss16"] = [run(9.0, foreign_share=0.5)]
    assert line_of(found, "ss16     ours").endswith("runs=1 *")


def test_a_peer_that_is_not_there_is_named_with_its_reason() -> None:
    found = results(ours=[run()])
    found.unavailable["vllm:float32"] = "this CPU has no AVX512"
    assert line_of(found, "vllm") == "vllm:float32: peer unavailable: this CPU has no AVX512"
    assert line_of(found, "ss16     output").endswith("no figure: nothing to hold it against ran")


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "import sys; print('loading'); sys.exit('RuntimeError: no such instruction')",
            "ended with status 1 while starting: RuntimeError: no such instruction",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
            "ended by Illegal instruction while starting: its log is empty",
        ),
    ],
)
def test_a_server_that_ends_while_starting_says_why(tmp_path: Path, program: str, why: str) -> None:
    server = Server(
        name="peer",
        command=(sys.executable, "-c", program),
        url="http://127.0.0.1:9",
        model="m",
        ready="/health",
    )
    with pytest.raises(Unavailable, match=why), running(server, tmp_path / "log"):
        pass


def test_the_steady_state_counts_neither_the_burst_nor_the_end() -> None:
    # Two places; each request takes a second, its first token comes after half of it.
    sent = [Sent(start, start + 0.5, start + 1.0, 10, 5) for start in (0.0, 0.0, 1.0, 1.0, 2.0, 2.0)]
    found = reduce(sent, concurrency=2)
    # From 0.5 to 2.0: the burst's ten tokens, and those of the two that began at 1.0.
    assert found.output_tokens_per_s == pytest.approx(20 / 1.5)
    assert found.total_tokens_per_s == pytest.approx(40 / 1.5)
    assert found.ttft_p50_ms == pytest.approx(500)


def test_every_server_gets_the_same_prompts() -> None:
    cell = Cell(name="c", prompt_tokens=(8, 12), output_tokens=1, concurrency=2, requests=5, shared_tokens=4)
    one, other = prompts(cell, seed=1), prompts(cell, seed=1)
    assert one == other
    assert len({tuple(ids[:4]) for ids in one}) == 1
    assert all(8 <= len(ids) <= 12 for ids in one)
    assert prompts(cell, seed=2) != one
