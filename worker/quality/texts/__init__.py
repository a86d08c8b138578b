"""The texts that divergence is measured on, written for that, and the prompts whose outputs are recorded.

Knows files beside it; knows nothing of tokens or models.
"""

from collections.abc import Mapping
from importlib.resources import files

KINDS = ("prose", "chat", "code", "data", "chinese")
_CHARACTERS_PER_TOKEN = {"prose": 4.0, "chat": 4.0, "code": 3.0, "data": 2.0, "chinese": 0.8}

RECORDED_PROMPTS = (
    "Name three things that float on water.",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about a lighthouse.",
    "What is 17 + 25? Show the steps.",
    "List the planets from the Sun outwards.",
    "Translate to French: The train leaves at noon.",
    "Give me a recipe for pancakes in five steps.",
    "Write a Python function that counts the words of a text.",
    "Summarise: The council met on Monday and agreed to repair the old bridge before winter.",
    "What should I pack for a day in the mountains?",
    "Write a polite e-mail that moves a meeting to Thursday.",
    "Who was Marie Curie?",
    "请用一句话介绍北京。",
    "Return JSON with the keys colour and shape for a red ball.",
    "Why do leaves fall in autumn?",
    "Tell a story that begins with: The door was already open.",
)
"""Fixed: their outputs are compared from version to version."""


def read_texts(num_tokens: int | None = None) -> Mapping[str, str]:
    """Return the texts by kind, whole or cut to about `num_tokens` over all kinds."""
    texts = {kind: (files(__name__) / f"{kind}.txt").read_text(encoding="utf-8") for kind in KINDS}
    if num_tokens is None:
        return texts
    share = num_tokens / len(KINDS)
    return {kind: text[: int(share * _CHARACTERS_PER_TOKEN[kind])] for kind, text in texts.items()}
