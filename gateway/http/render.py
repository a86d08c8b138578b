"""Generation events -> OpenAI's JSON, whole or as chunks. One renderer per endpoint, one shape each.

Knows nothing of HTTP: plain dicts come out. Log-probabilities are clamped, so that JSON stays valid.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.core.events import Delta, Finished, Receipt, TokenRecord
from services.domain.generation import FinishReason

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""

_FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.BUDGET: "budget",
}


@dataclass(slots=True)
class Total:
    """Usage over all prompts of one call."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def add(self, receipt: Receipt) -> None:
        self.prompt_tokens += receipt.usage.prompt_tokens
        self.cached_tokens += receipt.usage.cached_tokens
        self.output_tokens += receipt.usage.output_tokens

    def render(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(slots=True)
class Choice:
    """One choice as it grows."""

    texts: list[str] = field(default_factory=list)
    tokens: list[TokenRecord] = field(default_factory=list)
    finish: Finished | None = None
    text_length: int = 0
    """Characters given out so far, for `text_offset`."""


class Renderer(Protocol):
    """One endpoint's shape of answers."""

    object: str
    chunk_object: str

    def choice(self, index: int, choice: Choice, *, logprobs: bool) -> dict[str, Any]:
        """Render a whole choice."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Render what a stream sends before a choice's first text, if anything."""

    def delta(self, index: int, delta: Delta, offset: int, *, logprobs: bool) -> dict[str, Any]:
        """Render a part of a choice; `offset` is the characters before it."""

    def ending(self, index: int, finish: Finished) -> dict[str, Any]:
        """Render the end of a choice: the only chunk with a finish reason."""


class CompletionRenderer:
    """/v1/completions."""

    object = "text_completion"
    chunk_object = "text_completion"

    def choice(self, index: int, choice: Choice, *, logprobs: bool) -> dict[str, Any]:
        return {
            "index": index,
            "text": "".join(choice.texts),
            "logprobs": _completion_logprobs(choice.tokens, 0) if logprobs else None,
            **_finish(choice.finish),
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def delta(self, index: int, delta: Delta, offset: int, *, logprobs: bool) -> dict[str, Any]:
        tokens = _completion_logprobs(delta.tokens, offset) if logprobs else None
        return {"index": index, "text": delta.text, "logprobs": tokens, "finish_reason": None}

    def ending(self, index: int, finish: Finished) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, **_finish(finish)}


class ChatRenderer:
    """/v1/chat/completions."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def choice(self, index: int, choice: Choice, *, logprobs: bool) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
            "logprobs": _chat_logprobs(choice.tokens) if logprobs else None,
            **_finish(choice.finish),
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, delta: Delta, offset: int, *, logprobs: bool) -> dict[str, Any]:
        tokens = _chat_logprobs(delta.tokens) if logprobs else None
        return {
            "index": index,
            "delta": {"content": delta.text},
            "logprobs": tokens,
            "finish_reason": None,
        }

    def ending(self, index: int, finish: Finished) -> dict[str, Any]:
        return {"index": index, "delta": {}, "logprobs": None, **_finish(finish)}


def _finish(finish: Finished | None) -> dict[str, Any]:
    if finish is None:
        return {"finish_reason": None}
    return {"finish_reason": _FINISH[finish.reason], "stop_reason": finish.stop_string}


def _clamp(logprob: float | None) -> float:
    return LOWEST_LOGPROB if logprob is None or not logprob > LOWEST_LOGPROB else logprob


def _text(token_bytes: bytes) -> str:
    return token_bytes.decode("utf-8", errors="replace")


def _chat_logprobs(tokens: list[TokenRecord] | tuple[TokenRecord, ...]) -> dict[str, Any]:
    def entry(token_bytes: bytes, logprob: float | None) -> dict[str, Any]:
        return {"token": _text(token_bytes), "bytes": list(token_bytes), "logprob": _clamp(logprob)}

    content = [
        entry(token.token_bytes, token.logprob)
        | {"top_logprobs": [entry(token_bytes, value) for _, token_bytes, value in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _completion_logprobs(tokens: list[TokenRecord] | tuple[TokenRecord, ...], offset: int) -> dict[str, Any]:
    offsets, position = [], offset
    for token in tokens:
        offsets.append(position)
        position += len(_text(token.token_bytes))
    return {
        "tokens": [_text(token.token_bytes) for token in tokens],
        "token_logprobs": [_clamp(token.logprob) for token in tokens],
        "top_logprobs": [{_text(b): _clamp(value) for _, b, value in token.top} for token in tokens],
        "text_offset": offsets,
    }
