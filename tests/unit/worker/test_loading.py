"""What is loaded before a worker serves."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from services.chassis.config import ByteSize
from services.chassis.fatal import EngineFailed, FatalError
from services.domain.generation import SamplingParams
from services.domain.kv_layout import PAGE_SIZES
from worker.config import ExecutorKind, WorkerConfig
from worker.engine.batch import SampleRow
from worker.executor_choice import Opened
from worker.executors.base import ExecutorFault
from worker.executors.sim import SimConfig, SimExecutor
from worker.loading import SIM_TOKEN_BYTES, load, warm_up_batch


def sim_config(**fields: object) -> WorkerConfig:
    values: dict[str, object] = {"model": "sim", "executor": ExecutorKind.SIM, "sim_step_ms": 0.0}
    return WorkerConfig(**(values | fields))


def model_folder(folder: Path) -> Path:
    """Write a byte-level model of one word, without weights."""
    vocabulary = {"<end>": 0, "Ġ": 1, "h": 2, "i": 3, "Ġh": 4, "Ġhi": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ġ", "h"), ("Ġh", "i")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"model_type": "llama", "vocab_size": 6, "max_position_embeddings": 512, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


HEAP_OF_A_THREAD = """
import threading

import numpy as np
import psutil

from worker.loading import give_back_free_heap

def load() -> None:
    # What glibc has mapped and got back makes it take smaller pieces from a heap, and keep them.
    first = np.ones(24 << 20, np.uint8)
    del first
    before = psutil.Process().memory_info().rss
    kept = [np.ones(2 << 20, np.uint8) for _ in range(8)]
    del kept
    after = psutil.Process().memory_info().rss
    give_back_free_heap()
    print(after - before, psutil.Process().memory_info().rss - before)

thread = threading.Thread(target=load)
thread.start()
thread.join()
"""
"""For a process of its own: what glibc keeps depends on all that was freed before."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep other things")
def test_what_the_loading_thread_freed_is_given_back() -> None:
    words = subprocess.run(
        [sys.executable, "-c", HEAP_OF_A_THREAD], check=True, capture_output=True, text=True
    )
    kept, left = map(int, words.stdout.split())
    assert kept > 15 << 20
    assert left < 4 << 20


def test_a_bare_sim_pretends_a_gibibyte() -> None:
    loaded = load(sim_config())
    assert loaded.pool.num_pages == (1 << 30) // loaded.executor.profile.page_bytes
    assert loaded.max_context_tokens == 8192


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_the_page_size_reaches_executor_and_pool(page_size: int) -> None:
    loaded = load(sim_config(page_size=page_size, kv_memory=1 << 26))
    assert loaded.executor.profile.page_size == page_size
    assert loaded.pool.num_pages == (1 << 26) // (page_size * SIM_TOKEN_BYTES)
    assert f"per page of {page_size} tokens = {loaded.pool.num_pages} pages" in loaded.pool.arithmetic


def test_given_memory_and_context_bound_the_pool() -> None:
    loaded = load(sim_config(kv_memory=1 << 22, max_context_tokens=100))
    assert loaded.pool.num_pages == (1 << 22) // loaded.executor.profile.page_bytes
    assert loaded.max_context_tokens == 100


def test_a_sim_of_a_real_model_has_its_sizes_and_draws_its_words(tmp_path: Path) -> None:
    loaded = load(sim_config(model=f"tiny={model_folder(tmp_path)}"))
    profile = loaded.executor.profile
    assert (profile.model, profile.vocab_size, profile.max_context_tokens) == ("tiny", 6, 512)
    assert isinstance(loaded.executor, SimExecutor)
    assert loaded.executor.config.palette == (5,)


def test_the_warm_up_computes_one_token_of_page_zero() -> None:
    batch = warm_up_batch()
    assert batch.page_table.tolist() == [[0]]
    greedy = SamplingParams(temperature=0)
    assert batch.sampling == (SampleRow(params=greedy, choice=0, position=0, prompt_ids=(0,), output_ids=()),)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="nothing-here"):
        load(WorkerConfig(model=f"x={tmp_path}/nothing-here"))


def test_a_device_without_room_for_the_pool_ends_the_start_with_the_cause() -> None:
    class Full(SimExecutor):
        def allocate(self, num_pages: int, *, captures: bool = True) -> None:
            raise ExecutorFault(f"allocating {num_pages} pages ran out of device memory")

    config = WorkerConfig(model="x=/nowhere", kv_memory=ByteSize(100 << 20))
    says = r"allocating 100 pages ran out of device memory; lower --kv-memory"
    with pytest.raises(EngineFailed, match=says):
        load(config, lambda _: Opened(Full(SimConfig(time_scale=0, page_bytes=1 << 20))))
