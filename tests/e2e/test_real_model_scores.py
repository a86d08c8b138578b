"""Prompts of the real model, scored through all processes: log-probabilities as transformers gives them."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from services.artifacts.artifact import open_artifact
from tests.e2e.reference.greedy import load, load_transformers
from tests.e2e.stack import Stack, running
from tests.e2e.stack_setup import MODEL, REAL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""The first start compiles the library and packs the weights."""

PROMPTS = [case.prompt_ids for case in load()[1].values()]
TOLERANCE = 2e-4
"""Of a log-probability, where both sides compute in float32 and add up in orders of their own."""


@pytest.fixture(scope="module")
def expected(model_path: Path) -> list[NDArray[np.float64]]:
    """Of each prompt [tokens, vocab]: what transformers gives to every id behind each token."""
    model = load_transformers(open_artifact(model_path))
    with torch.inference_mode():
        return [
            torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1).numpy() for ids in PROMPTS
        ]


@pytest.fixture(scope="module", params=["native", "torch"])
def stack(
    request: pytest.FixtureRequest, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    setup = replace(REAL, executor=request.param)
    with running(setup, model_path, tmp_path_factory.mktemp(request.param)) as started:
        yield started


def scored(stack: Stack, prompts: list[list[int]], max_tokens: int) -> list[dict[str, Any]]:
    """Return the logprobs of each prompt, all sent in one call."""
    body = {"model": MODEL, "prompt": prompts, "max_tokens": max_tokens, "temperature": 0}
    data = json.dumps(body | {"echo": True, "logprobs": 5}).encode()
    url = f"http://127.0.0.1:{stack.ports.http}/v1/completions"
    with urlopen(Request(url, data, {"content-type": "application/json"}), timeout=300) as answer:
        choices = json.load(answer)["choices"]
    return [choice["logprobs"] for choice in sorted(choices, key=lambda choice: choice["index"])]


async def test_every_prompt_token_has_the_log_probability_that_transformers_gives_it(
    stack: Stack, expected: list[NDArray[np.float64]]
) -> None:
    cold = await asyncio.to_thread(scored, stack, PROMPTS, 0)
    for ids, logprobs, reference in zip(PROMPTS, cold, expected, strict=True):
        assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(ids)
        assert logprobs["token_logprobs"][0] is None
        ours = np.array(logprobs["token_logprobs"][1:])
        np.testing.assert_allclose(ours, reference[range(len(ids) - 1), ids[1:]], rtol=0, atol=TOLERANCE)
        best = [max(top.values()) for top in (logprobs["top_logprobs"] or [None])[1:]]
        np.testing.assert_allclose(best, reference[:-1].max(-1), rtol=0, atol=TOLERANCE)
    # By now all of it is cached, and goes through in another order and one by one.
    for index in reversed(range(len(PROMPTS))):
        (again,) = await asyncio.to_thread(scored, stack, [PROMPTS[index]], 1)
        assert again["token_logprobs"][:-1] == cold[index]["token_logprobs"]
