"""The real Gemma 3 through all five processes, on either executor of a CPU: transformers' ids, streamed."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.artifacts.artifact import open_artifact
from services.artifacts.fetch import pull
from services.client import AsyncClient, Message
from services.client.values import Delta
from services.domain.errors import InvalidField
from tests.e2e.reference.gemma3 import MODEL, load
from tests.e2e.reference.prompts import PROMPTS
from tests.e2e.stack import Stack, running
from tests.e2e.stack_setup import REAL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CASES = load()[1]
LARGE = replace(REAL, num_pages=128, stuck_after_s=50, up_limit_s=300)
"""Four times the weights of the other real model, five times the vocabulary."""


@pytest.fixture(scope="module")
def gemma_path() -> Path:
    return pull(MODEL)


@pytest.fixture(scope="module", params=["native", "torch"])
def gemma(
    request: pytest.FixtureRequest, gemma_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    setup = replace(LARGE, executor=request.param)
    with running(setup, gemma_path, tmp_path_factory.mktemp("gemma")) as stack:
        yield stack


async def streamed(client: AsyncClient, name: str) -> tuple[list[int], str, int]:
    """Return ids, text and number of pieces of a greedy answer."""
    num_ids = len(CASES[name].certain_ids)
    async with client.generate(
        PROMPTS[name],
        temperature=0,
        max_output_tokens=num_ids,
        ignore_eos=True,
        return_token_ids=True,
        timeout_s=200,
    ) as stream:
        pieces = [event async for event in stream if isinstance(event, Delta)]
    ids = [token_id for piece in pieces for token_id in piece.token_ids]
    return ids, "".join(piece.text for piece in pieces), len(pieces)


async def test_all_at_once_stream_the_ids_of_transformers(gemma: Stack, gemma_path: Path) -> None:
    async with gemma.client() as client:
        answers = await asyncio.gather(*(streamed(client, name) for name in CASES))
    tokenizer = open_artifact(gemma_path).tokenizer
    for case, (ids, text, num_pieces) in zip(CASES.values(), answers, strict=True):
        assert ids == case.certain_ids
        assert text == tokenizer.decode(case.certain_ids)
        assert num_pieces > 1


async def test_a_model_without_a_template_refuses_to_chat(gemma: Stack) -> None:
    async with gemma.client() as client:
        with pytest.raises(InvalidField, match="has no chat template"):
            await client.generate_text([Message("user", "Hello")], max_output_tokens=1)
