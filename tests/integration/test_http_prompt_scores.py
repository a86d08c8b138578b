"""Scored prompts through the HTTP door, the worker's stream and a model that computes.

`loglikelihoods` asks and reads as lm-evaluation-harness' `local-completions` does: ids in batches, one token
generated that is left out, greedy where the token's own score is the largest of the alternatives.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from services.domain.kv_layout import KvFormat
from tests.fakes.byte_tokenizer import VOCAB_SIZE
from tests.fakes.http_rig import HttpRig, http_rig
from tests.integration.worker_bench import running_worker
from tests.unit.executors.native_models import load_native
from tests.unit.executors.tiny_models import make_model, reference_logits, save_folder
from worker.executors.base import Executor
from worker.executors.native.library import Compute
from worker.executors.torch_executor import load_torch_executor

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the native executor."""

MODEL = make_model("llama", vocab_size=VOCAB_SIZE, max_position_embeddings=512)
RNG = np.random.default_rng(5)
TASK = [
    (RNG.integers(0, 256, num_context).tolist(), RNG.integers(0, 256, num_target).tolist())
    for num_context, num_target in [(1, 1), (5, 3), (40, 2), (70, 70), (150, 1), (16, 16), (33, 9)]
]
"""Contexts and what is to be scored behind them."""


def native(folder: Path) -> Executor:
    return load_native(
        save_folder(MODEL, folder / "model"), folder, kv_format=KvFormat.F32, compute=Compute.F32
    )


def torch(folder: Path) -> Executor:
    return load_torch_executor(save_folder(MODEL, folder / "model"), model_name="tiny", num_threads=1)


@asynccontextmanager
async def served(executor: Executor, **options: Any) -> AsyncIterator[HttpRig]:
    """Put a worker of its own behind the HTTP door."""
    async with (
        running_worker(executor=executor, num_pages=128, **options) as running,
        http_rig(max_context_tokens=512, total_pages=128) as http,
    ):
        epoch = (await running.status()).epoch
        here = SimpleNamespace(name="worker-0", epoch=epoch, port=running.worker.port)
        http.rig.scheduler.workers = [here]  # type: ignore[list-item]
        yield http
        await http.rig.settled()
        await running.wait_empty()


async def loglikelihoods(
    http: HttpRig, task: list[tuple[list[int], list[int]]], *, batch_size: int
) -> list[tuple[float, bool]]:
    found: list[tuple[float, bool]] = []
    for start in range(0, len(task), batch_size):
        batch = task[start : start + batch_size]
        answer = await http.post(
            prompt=[context + target for context, target in batch],
            temperature=0,
            max_tokens=1,
            logprobs=1,
            seed=1234,
            echo=True,
        )
        assert answer.status_code == 200, answer.text
        choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
        for (context, target), choice in zip(batch, choices, strict=True):
            scores = choice["logprobs"]["token_logprobs"][len(context) : -1]
            best = [max(top.values()) for top in choice["logprobs"]["top_logprobs"][len(context) : -1]]
            assert len(scores) == len(target)
            found.append((sum(scores), scores == best))
    return found


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return result


def expected(context: list[int], target: list[int]) -> tuple[float, bool]:
    logprobs = log_softmax(reference_logits(MODEL, context + target))[len(context) - 1 : -1]
    return float(logprobs[range(len(target)), target].sum()), logprobs.argmax(-1).tolist() == target


@pytest.mark.parametrize("make", [native, torch])
async def test_sums_over_targets_are_those_of_transformers(make: Any, tmp_path: Path) -> None:
    async with served(make(tmp_path)) as http:
        one_by_one = await loglikelihoods(http, TASK, batch_size=1)
        assert await loglikelihoods(http, TASK, batch_size=len(TASK)) == one_by_one, "now cached, and batched"
    for (context, target), (score, is_greedy) in zip(TASK, one_by_one, strict=True):
        reference, is_best = expected(context, target)
        assert score == pytest.approx(reference, abs=1e-4 * len(target))
        assert is_greedy == is_best


async def test_a_target_that_the_model_itself_gives_is_greedy(tmp_path: Path) -> None:
    async with served(native(tmp_path)) as http:
        prompt = TASK[2][0]
        answer = await http.post(
            prompt=prompt, temperature=0, max_tokens=6, logprobs=0, ignore_eos=True, echo=True
        )
        drawn = answer.json()["choices"][0]["logprobs"]["token_logprobs"][len(prompt) :]
        ids = log_softmax(reference_logits(MODEL, prompt))[-1].argmax()
        found = await loglikelihoods(http, [(prompt, [int(ids)])], batch_size=1)
        assert found == [(drawn[0], True)], "the score of a token is that which it had when it was drawn"


@pytest.mark.failure("B045")
@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_a_prompt_that_is_cached_is_scored_as_if_it_were_not(max_tokens: int, tmp_path: Path) -> None:
    prompt = TASK[3][0] + TASK[3][1]
    async with served(native(tmp_path)) as http:
        call: dict[str, Any] = {"prompt": prompt, "temperature": 0, "logprobs": 5, "echo": True}
        cold = (await http.post(**call, max_tokens=max_tokens)).json()
        assert (await http.post(prompt=prompt, max_tokens=1)).json()["usage"]["prompt_tokens_details"] == {
            "cached_tokens": 128
        }
        again = (await http.post(**call, max_tokens=max_tokens)).json()
        assert again["choices"] == cold["choices"]
        assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        logprobs = cold["choices"][0]["logprobs"]
        assert len(logprobs["token_logprobs"]) == len(prompt) + max_tokens
        reference = log_softmax(reference_logits(MODEL, prompt))
        scores = reference[range(len(prompt) - 1), prompt[1:]]
        assert logprobs["token_logprobs"][1 : len(prompt)] == pytest.approx(scores, abs=1e-4)
        assert all(len(top) >= 5 for top in logprobs["top_logprobs"][1:])
