"""The real Gemma 3: the logits and ids of transformers on every executor, also beyond the window."""

from pathlib import Path

import numpy as np
import pytest
import torch

from services.artifacts.artifact import open_artifact
from services.artifacts.fetch import pull
from services.domain.kv_layout import KvFormat
from tests.e2e.reference.gemma3 import MODEL, load, load_transformers, prompt_ids
from tests.e2e.reference.greedy import Case, sha256_of
from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.native_models import load_native
from worker.executors.native.library import Compute
from worker.executors.torch_executor import TorchExecutor, load_torch_executor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REFERENCE_SHA256, CASES = load()
NUM_PAGES = 50


@pytest.fixture(scope="module")
def gemma_path() -> Path:
    return pull(MODEL)


@pytest.fixture(scope="module")
def executor(gemma_path: Path) -> TorchExecutor:
    executor = load_torch_executor(gemma_path, model_name="real", num_threads=1)
    executor.allocate(2 * NUM_PAGES)
    return executor


def whole(case: Case) -> list[int]:
    return case.prompt_ids + case.certain_ids


def test_the_tokenizer_gives_the_ids_of_transformers(gemma_path: Path) -> None:
    assert sha256_of(gemma_path) == REFERENCE_SHA256
    assert prompt_ids(open_artifact(gemma_path)) == {name: case.prompt_ids for name, case in CASES.items()}


def test_logits_and_ids_are_those_of_transformers(executor: TorchExecutor, gemma_path: Path) -> None:
    reference = load_transformers(open_artifact(gemma_path))
    for name, case in CASES.items():
        ids, num_drawn = whole(case), len(case.certain_ids)
        logits_of(executor, [Part(case.prompt_ids, 0, range(NUM_PAGES))], every_row=False)
        rest = Part(ids[len(case.prompt_ids) - 1 : -1], len(case.prompt_ids) - 1, range(NUM_PAGES))
        ours = logits_of(executor, [rest])
        with torch.inference_mode():
            theirs = reference(torch.tensor([ids[:-1]]), logits_to_keep=num_drawn).logits[0].numpy()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-3, err_msg=name)
        assert ours.argmax(-1).tolist() == case.certain_ids == theirs.argmax(-1).tolist(), name


def test_the_native_executor_gives_the_ids_of_transformers(gemma_path: Path, tmp_path: Path) -> None:
    executor = load_native(gemma_path, tmp_path, compute=Compute.F32, kv_format=KvFormat.F32)
    executor.allocate(NUM_PAGES)
    for name, case in CASES.items():
        ids = whole(case)[:-1]
        ours = logits_of(executor, [Part(ids, 0, range(NUM_PAGES))])[-len(case.certain_ids) :]
        assert ours.argmax(-1).tolist() == case.certain_ids, name
    executor.close()


def test_chunks_and_company_change_no_bit_beyond_the_window(executor: TorchExecutor) -> None:
    ids = whole(CASES["journal"])
    assert len(ids) > 512 + 128, "a block of keys lies outside every window"
    start = len(ids) - 8
    alone = logits_of(executor, [Part(ids, 0, range(NUM_PAGES))], every_row=False)[0]
    pages = list(reversed(range(NUM_PAGES, 2 * NUM_PAGES)))
    for first in range(0, start, 200):
        logits_of(executor, [Part(ids[first : min(start, first + 200)], first, pages)], every_row=False)
    short = Part(whole(CASES["fact"]), 0, range(NUM_PAGES))
    together = logits_of(executor, [short, Part(ids[start:], start, pages), short], every_row=False)
    assert np.array_equal(together[1], alone)
