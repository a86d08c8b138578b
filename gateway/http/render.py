"""Generation events -> OpenAI's JSON, whole or as chunks. One renderer per endpoint, one shape each.

Knows nothing of HTTP: plain dicts come out.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.core.events import Delta, Finished, Receipt, TokenRecord
from gateway.http.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from services.domain.degradation import Degraded
from services.domain.generation import FinishReason

_FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.BUDGET: "length",
}
"""In the words that OpenAI's clients know; `stop_reason` says the rest."""


@dataclass(slots=True)
class Total:
    """Usage over all prompts of one call."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    degraded: list[Degraded] = field(default_factory=list)
    cost_nanos: int | None = None

    def add(self, receipt: Receipt) -> None:
        self.prompt_tokens += receipt.usage.prompt_tokens
        self.cached_tokens += receipt.usage.cached_tokens
        self.output_tokens += receipt.usage.output_tokens
        self.degraded += receipt.degraded
        if receipt.cost_nanos is not None:
            self.cost_nanos = (self.cost_nanos or 0) + receipt.cost_nanos

    def render(self) -> dict[str, Any]:
        cost = {} if self.cost_nanos is None else {"cost_nanos": self.cost_nanos}
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            **cost,
        }
        if self.degraded:
            usage["degraded"] = [
                {"step": one.step.name.lower(), "asked": one.asked, "served": one.served}
                for one in self.degraded
            ]
        return usage


@dataclass(slots=True)
class Choice:
    """One choice as it grows."""

    texts: list[str] = field(default_factory=list)
    tokens: list[TokenRecord] = field(default_factory=list)
    finish: Finished | None = None
    offsets: TextOffsets = field(default_factory=TextOffsets)
    """Where in the text the next token begins."""


class Renderer(Protocol):
    """One endpoint's shape of answers."""

    object: str
    chunk_object: str

    def choice(self, index: int, choice: Choice, *, logprobs: bool) -> dict[str, Any]:
        """Render a whole choice."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Render what a stream sends before a choice's first text, if anything."""

    def delta(self, delta: Delta, index: int, choice: Choice, *, logprobs: bool) -> dict[str, Any]:
        """Render the next part of a choice."""

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
            "logprobs": completion_logprobs(choice.tokens, choice.offsets) if logprobs else None,
            **_finish(choice.finish),
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def delta(self, delta: Delta, index: int, choice: Choice, *, logprobs: bool) -> dict[str, Any]:
        tokens = completion_logprobs(delta.tokens, choice.offsets) if logprobs else None
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
            "logprobs": chat_logprobs(choice.tokens) if logprobs else None,
            **_finish(choice.finish),
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, delta: Delta, index: int, choice: Choice, *, logprobs: bool) -> dict[str, Any]:
        tokens = chat_logprobs(delta.tokens) if logprobs else None
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
    budget = "budget" if finish.reason is FinishReason.BUDGET else None
    return {"finish_reason": _FINISH[finish.reason], "stop_reason": finish.stop_string or budget}
