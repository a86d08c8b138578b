"""Text of the real model: tokens that are parts of characters, stop strings across token borders."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.artifacts.artifact import open_artifact
from services.artifacts.tokenizer import ModelTokenizer
from services.client import AsyncClient
from services.client.values import Choice, Delta
from services.domain.generation import FinishReason
from tests.e2e.stack import Stack

NUM_TOKENS = 20
REPLACEMENT = "\ufffd"
NEVER = "☂"
"""The model does not say this."""
TEXTS = {
    "emoji": "👩‍👩‍👧 🏳️‍🌈 🇩🇪 👍🏽\n" * 4,
    "cjk": "日本語の文章です。你好，世界！안녕하세요\n" * 4,
    "combining": "e\u0301 a\u0308 n\u0303 o\u0302 नमस्ते\n" * 4,
    "mixed": "😀 日本 e\u0301 ✓ ∑ Ω 🎉\n" * 4,
}
"""Repetitions, which the model goes on repeating."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as its stream gave it."""

    deltas: list[str]
    choice: Choice

    @property
    def text(self) -> str:
        return "".join(self.deltas)


async def ask(client: AsyncClient, name: str, **options: Any) -> Answer:
    deltas = []
    options = {"temperature": 0, "max_output_tokens": NUM_TOKENS, "ignore_eos": True} | options
    async with client.generate(TEXTS[name], return_token_ids=True, **options) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                deltas.append(event.text)
        completion = await stream.completion()
    answer = Answer(deltas, completion.choices[0])
    assert answer.text == completion.text
    assert completion.receipt.usage.output_tokens == len(answer.choice.token_ids)
    return answer


async def ask_all(client: AsyncClient, **options: Any) -> dict[str, Answer]:
    answers = await asyncio.gather(*(ask(client, name, **options) for name in TEXTS))
    return dict(zip(TEXTS, answers, strict=True))


@pytest.fixture(scope="module")
def whole(real: Stack) -> dict[str, Answer]:
    """What the model says where nothing stops it."""

    async def look() -> dict[str, Answer]:
        async with real.client() as client:
            return await ask_all(client)

    return asyncio.run(look())


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> ModelTokenizer:
    return open_artifact(model_path).tokenizer


def num_parts(tokenizer: ModelTokenizer, ids: Sequence[int]) -> int:
    """Count tokens that are no text by themselves."""
    return sum(REPLACEMENT in tokenizer.decode([token_id]) for token_id in ids)


async def test_joined_deltas_are_the_decode_of_all_ids(
    real: Stack, whole: dict[str, Answer], tokenizer: ModelTokenizer
) -> None:
    async with real.client() as client:
        noise = await ask_all(client, temperature=2, seed=5)
    for answer in (*whole.values(), *noise.values()):
        assert len(answer.choice.token_ids) == NUM_TOKENS
        assert answer.text == tokenizer.decode(answer.choice.token_ids)
        assert len(answer.deltas) > 1
    for name, answer in whole.items():
        assert num_parts(tokenizer, answer.choice.token_ids) >= 4, name
        assert REPLACEMENT not in answer.text[:-1], "characters are whole until the answer's last one"


@pytest.mark.failure("B070")
async def test_a_stop_across_token_borders_never_shows(
    real: Stack, whole: dict[str, Answer], tokenizer: ModelTokenizer
) -> None:
    stops = {name: stop_inside(answer.text) for name, answer in whole.items()}
    async with real.client() as client:
        asked = [
            ask(client, name, stop=[stop + NEVER, stop], include_stop=include_stop)
            for name, stop in stops.items()
            for include_stop in (False, True)
        ]
        answers = iter(await asyncio.gather(*asked))
    for name, stop in stops.items():
        ids, text = whole[name].choice.token_ids, whole[name].text
        start = text.index(stop)
        num_ids = next(n for n in range(len(ids)) if stop in tokenizer.decode(ids[:n]))
        assert stop not in [tokenizer.decode([token_id]) for token_id in ids]
        for shown in (text[:start], text[: start + len(stop)]):
            answer = next(answers)
            assert answer.text == shown
            assert answer.choice.reason is FinishReason.STOP_STRING
            assert answer.choice.stop_string == stop
            assert answer.choice.token_ids == ids[:num_ids]


@pytest.mark.failure("B070")
async def test_what_only_looked_like_a_stop_is_shown_after_all(real: Stack, whole: dict[str, Answer]) -> None:
    async with real.client() as client:
        asked = [
            ask(client, name, stop=[stop_inside(answer.text) + NEVER, answer.text[-1] + NEVER])
            for name, answer in whole.items()
        ]
        answers = await asyncio.gather(*asked)
    for answer, expected in zip(answers, whole.values(), strict=True):
        assert answer.text == expected.text
        assert answer.choice.reason is FinishReason.LENGTH
        assert answer.choice.token_ids == expected.choice.token_ids


def stop_inside(text: str) -> str:
    """Return three characters from the middle of an answer."""
    return text[len(text) // 3 : len(text) // 3 + 3]
