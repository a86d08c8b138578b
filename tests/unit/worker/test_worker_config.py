"""The worker's configuration."""

from pathlib import Path

import pytest

from services.chassis.config import ConfigError, load
from worker.config import ExecutorKind, WorkerConfig


def configured(*argv: str) -> WorkerConfig:
    return load(WorkerConfig, "worker", argv=list(argv), environ={})


def test_flags_of_a_real_worker() -> None:
    config = configured("--model", "smol=/models/smol", "--kv-memory", "512MiB", "--max-sequences", "8")
    assert (config.model_name, config.model_path) == ("smol", Path("/models/smol"))
    assert config.kv_memory == 512 << 20
    assert config.executor is ExecutorKind.AUTO


def test_a_sim_needs_no_files() -> None:
    config = configured("--executor", "sim", "--model", "sim")
    assert (config.model_name, config.model_path) == ("sim", None)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--model", "smol"], "NAME=PATH"),
        (["--executor", "sim"], "NAME=PATH"),
        (["--model", "a=b", "--max-sequences", "0"], "max_sequences"),
        (["--model", "a=b", "--max-sequences", "many"], "--max-sequences"),
        (["--model", "a=b", "--max-sequence", "3"], "--max-sequences"),
        (["--model", "a=b", "--max-step-tokens", "32"], "max_step_tokens"),
        (["--model", "a=b", "--max-prefill-tokens", "600"], "max_prefill_tokens"),
        (["--model", "a=b", "--kv-memory-fraction", "1"], "kv_memory_fraction"),
        (["--model", "a=b", "--restart-after-s", "1"], "restart_after_s"),
        (["--model", "a=b", "--threads", "0"], "threads"),
        (["--model", "a=b", "--tensor-parallel-size", "0"], "tensor_parallel_size"),
        (
            ["--model", "a=b", "--executor", "native", "--tensor-parallel-size", "2"],
            "tensor_parallel_size 2: the native executor is one process",
        ),
        (
            ["--model", "a=b", "--executor", "torch", "--dense-products", "vendor"],
            "dense_products vendor: the torch executor has no such library",
        ),
        (["--model", "a=b", "--page-size", "24"], "page_size must be one of 16, 32, 64, 128, got 24"),
    ],
)
def test_values_out_of_range_are_named(argv: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        configured(*argv)
