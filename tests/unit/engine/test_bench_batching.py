"""The batching experiment: what it measures is what batching theory says."""

import json

import pytest

from bench.batching import POLICIES, Arrival, Setting, main, make_workload, simulate


def setting(policy: str, batch_size: int = 8, window_s: float = 0.0) -> Setting:
    return Setting(
        policy=policy,
        batch_size=batch_size,
        window_s=window_s,
        prefill_tokens_per_s=4000,
        decode_sequence_s=0.0006,
    )


WORKLOAD = make_workload(30, rate=10, prompt=(32, 128), output=(4, 60), seed=5)


def test_continuous_batching_beats_static_batching() -> None:
    static, continuous = simulate(setting("static"), WORKLOAD), simulate(setting("continuous"), WORKLOAD)
    assert continuous.ttft_p50_s < static.ttft_p50_s
    assert continuous.output_tokens_per_s > static.output_tokens_per_s


def test_a_window_costs_queue_time() -> None:
    without, with_window = (simulate(setting("continuous", window_s=w), WORKLOAD) for w in (0.0, 0.2))
    assert with_window.queue_p50_s > without.queue_p50_s + 0.05


def test_a_lone_request_waits_for_its_window_and_no_longer() -> None:
    lone = [Arrival(handle=0, at_s=1.0, num_prompt_tokens=40, num_output_tokens=1)]
    for policy, wait_s in (("continuous", 0.25), ("windowed", 0.0), ("static", 0.0)):
        # Nobody else is coming, so a batch to be filled leaves at once.
        assert simulate(setting(policy, window_s=0.25), lone).queue_p50_s == pytest.approx(wait_s)
    later = [*lone, Arrival(handle=1, at_s=9.0, num_prompt_tokens=40, num_output_tokens=1)]
    assert simulate(setting("windowed", window_s=0.25), later).queue_p99_s == pytest.approx(0.25, abs=0.01)
    assert simulate(setting("static"), later).queue_p99_s == pytest.approx(8.0, abs=0.1)


def test_the_same_seed_gives_the_same_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--requests", "5", "--batch-size", "2", "--window-ms", "0", "--json"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    rows = [json.loads(line) for line in first.splitlines()]
    assert {row["policy"] for row in rows} == set(POLICIES)
    assert len(rows) == 4 * 3
