"""The real model through all five processes: transformers' ids, and the same ones in any company."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from services.artifacts.artifact import open_artifact
from services.client import AsyncClient, Message
from services.client.values import Completion
from tests.e2e.reference.greedy import NUM_TOKENS, Case, compute, load, prompt_ids, sha256_of
from tests.e2e.reference.prompts import CHATS, PROMPTS
from tests.e2e.stack import Stack, running
from tests.e2e.stack_setup import MODEL, REAL

REFERENCE_SHA256, CASES = load()
QUESTIONS: Mapping[str, str | tuple[Message, ...]] = PROMPTS | CHATS
SEEDED: dict[str, dict[str, Any]] = {
    "prose": {"seed": 1},
    "python": {"seed": 2, "top_p": 0.9},
    "japanese": {"seed": 3, "repetition_penalty": 1.2},
    "list": {"seed": 4, "top_k": 40, "min_p": 0.02},
    "several turns": {"seed": 5, "presence_penalty": 0.5, "frequency_penalty": 0.5, "top_p": 0.95},
    "arithmetic": {"seed": 6, "n": 2},
}
NUM_SEEDED_TOKENS = 12


async def greedy(client: AsyncClient, name: str, num_tokens: int = NUM_TOKENS) -> Completion:
    return await client.generate_text(
        QUESTIONS[name],
        temperature=0,
        max_output_tokens=num_tokens,
        ignore_eos=True,
        return_token_ids=True,
    )


def assert_equals(answer: Completion, case: Case, num_tokens: int = NUM_TOKENS) -> None:
    certain = case.certain_ids[:num_tokens]
    assert list(answer.choices[0].token_ids[: len(certain)]) == certain
    assert answer.choices[0].output_tokens == num_tokens


async def seeded(client: AsyncClient, name: str) -> list[tuple[int, ...]]:
    """Return the ids of each choice at temperature 1."""
    answer = await client.generate_text(
        QUESTIONS[name],
        temperature=1,
        max_output_tokens=NUM_SEEDED_TOKENS,
        ignore_eos=True,
        return_token_ids=True,
        **SEEDED[name],
    )
    return [choice.token_ids for choice in answer.choices]


async def all_seeded(client: AsyncClient) -> dict[str, list[tuple[int, ...]]]:
    return dict(zip(SEEDED, await asyncio.gather(*(seeded(client, name) for name in SEEDED)), strict=True))


def test_the_pinned_ids_are_of_this_model_and_these_prompts(model_path: Path) -> None:
    assert sha256_of(model_path) == REFERENCE_SHA256
    assert {name: case.prompt_ids for name, case in CASES.items()} == prompt_ids(open_artifact(model_path))
    assert len(PROMPTS) == 20
    assert len(CHATS) == 3
    assert max(len(case.prompt_ids) for case in CASES.values()) > 650
    num_certain = sum(len(case.certain_ids) for case in CASES.values())
    assert num_certain > 0.9 * NUM_TOKENS * len(CASES), "near ties leave too little to compare"


@pytest.mark.failure("B094")
@pytest.mark.parametrize("num_tokens", [16, pytest.param(NUM_TOKENS, marks=pytest.mark.slow)])
async def test_all_at_once_gives_the_ids_of_transformers(real: Stack, num_tokens: int) -> None:
    async with real.client() as client:
        answers = await asyncio.gather(*(greedy(client, name, num_tokens) for name in CASES))
    for case, answer in zip(CASES.values(), answers, strict=True):
        assert_equals(answer, case, num_tokens)
        assert answer.receipt.usage.prompt_tokens == len(case.prompt_ids)
        assert answer.receipt.exact


@pytest.mark.failure("B040")
async def test_the_same_long_prompt_again_gives_the_same_ids(real: Stack) -> None:
    async with real.client() as client:
        first = await greedy(client, "journal", 4)
        again = await greedy(client, "journal", 4)
    assert again.started.cached_tokens == (len(CASES["journal"].prompt_ids) - 1) // 16 * 16
    assert_equals(first, CASES["journal"], 4)
    assert_equals(again, CASES["journal"], 4)


async def test_tokenize_gives_the_ids_that_generate_reads(real: Stack) -> None:
    async with real.client() as client:
        for name, case in CASES.items():
            assert list((await client.tokenize(QUESTIONS[name])).ids) == case.prompt_ids


def ask_http(stack: Stack, name: str, num_tokens: int) -> tuple[str, dict[str, int]]:
    """Return text and usage of a greedy answer."""
    question = QUESTIONS[name]
    body: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}
    if isinstance(question, str):
        path, body = "completions", body | {"prompt": question}
    else:
        turns = [{"role": turn.role, "content": turn.content} for turn in question]
        path, body = "chat/completions", body | {"messages": turns}
    url = f"http://127.0.0.1:{stack.ports.http}/v1/{path}"
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=100) as response:
        answer = json.load(response)
    choice = answer["choices"][0]
    return choice["text"] if isinstance(question, str) else choice["message"]["content"], answer["usage"]


async def test_http_gives_the_text_of_those_ids(real: Stack, model_path: Path) -> None:
    names = ["python", "japanese", "one turn"]
    nums = [len(CASES[name].certain_ids) for name in names]
    asked = [asyncio.to_thread(ask_http, real, name, num) for name, num in zip(names, nums, strict=True)]
    tokenizer = open_artifact(model_path).tokenizer
    for name, num, (text, usage) in zip(names, nums, await asyncio.gather(*asked), strict=True):
        assert text == tokenizer.decode(CASES[name].ids[:num])
        assert usage["prompt_tokens"] == len(CASES[name].prompt_ids)
        assert usage["completion_tokens"] == num


@pytest.mark.failure("B084")
@pytest.mark.failure("B088")
async def test_a_seed_draws_the_same_ids_alone_and_in_company(real: Stack) -> None:
    async with real.client() as client:
        alone = {name: await seeded(client, name) for name in SEEDED}
        assert await all_seeded(client) == alone
    first, second = alone["arithmetic"]
    assert first != second, "choices of one request draw independently"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_one_by_one_gives_the_ids_of_transformers(real: Stack) -> None:
    async with real.client() as client:
        for name, case in CASES.items():
            assert_equals(await greedy(client, name), case)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_reference_executor_gives_the_ids_of_transformers_too(
    model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running(replace(REAL, executor="torch"), model_path, tmp_path_factory.mktemp("torch")) as stack:
        async with stack.client() as client:
            answers = await asyncio.gather(*(greedy(client, name) for name in CASES))
            alone = await greedy(client, "journal")
    for case, answer in zip(CASES.values(), answers, strict=True):
        assert_equals(answer, case)
    assert_equals(alone, CASES["journal"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.failure("B084")
async def test_two_workers_give_the_ids_of_one(
    real: Stack, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with real.client() as client:
        expected = await all_seeded(client)
    with running(replace(REAL, num_workers=2), model_path, tmp_path_factory.mktemp("two")) as stack:
        async with stack.client() as client:
            answers = await asyncio.gather(*(greedy(client, name) for name in CASES))
            assert await all_seeded(client) == expected
    for case, answer in zip(CASES.values(), answers, strict=True):
        assert_equals(answer, case)
    assert {answer.receipt.worker for answer in answers} == {"worker-0", "worker-1"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_transformers_still_gives_the_pinned_ids(model_path: Path) -> None:
    for name, case in compute(model_path).items():
        certain = CASES[name].certain_ids
        assert case.ids[: len(certain)] == certain, name
        assert case.margins[: len(certain)] == pytest.approx(CASES[name].margins[: len(certain)], abs=5e-3)
