"""Token records -> OpenAI's two shapes of log-probabilities.

The chosen token is always among its alternatives where any were asked for. Values are clamped, so that JSON
stays valid. Knows nothing of choices or chunks.
"""

import codecs
from collections.abc import Sequence
from typing import Any

from gateway.core.events import TokenRecord

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class TextOffsets:
    """Characters of a choice before its next token, by the bytes of the tokens before."""

    __slots__ = ("_decoder", "_num_chars")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_chars = 0

    def take(self, token_bytes: bytes) -> int:
        """Return where a token begins, and go past it."""
        begins = self._num_chars
        self._num_chars += len(self._decoder.decode(token_bytes))
        return begins


def completion_logprobs(tokens: Sequence[TokenRecord], offsets: TextOffsets) -> dict[str, Any]:
    """Return the `logprobs` of /v1/completions for the next tokens of a choice.

    A prompt's first token follows nothing: it has null where others have theirs.
    """
    named = [None if token.logprob is None else _by_name(token) for token in tokens]
    return {
        "tokens": [_name(token.token_bytes) for token in tokens],
        "token_logprobs": [None if token.logprob is None else _clamp(token.logprob) for token in tokens],
        "top_logprobs": named if any(token.top for token in tokens) else None,
        "text_offset": [offsets.take(token.token_bytes) for token in tokens],
    }


def chat_logprobs(tokens: Sequence[TokenRecord]) -> dict[str, Any]:
    """Return the `logprobs` of /v1/chat/completions for tokens of a choice."""
    content = [
        _entry(token.token_bytes, token.logprob)
        | {"top_logprobs": [_entry(data, value) for _, data, value in _alternatives(token)]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _alternatives(token: TokenRecord) -> tuple[tuple[int, bytes, float], ...]:
    """Return the alternatives, most likely first, with the chosen token last if it is not among them."""
    if not token.top or any(token_id == token.token_id for token_id, _, _ in token.top):
        return token.top
    return (*token.top, (token.token_id, token.token_bytes, _clamp(token.logprob)))


def _by_name(token: TokenRecord) -> dict[str, float]:
    """Return the alternatives by name; of two with one name the more likely."""
    named: dict[str, float] = {}
    for _, data, value in _alternatives(token):
        named.setdefault(_name(data), _clamp(value))
    return named


def _entry(token_bytes: bytes, logprob: float | None) -> dict[str, Any]:
    text = token_bytes.decode("utf-8", errors="replace")
    return {"token": text, "bytes": list(token_bytes), "logprob": _clamp(logprob)}


def _name(token_bytes: bytes) -> str:
    """Return a token as a key; one that is no text of its own is named by its bytes, as OpenAI does."""
    try:
        return token_bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


def _clamp(logprob: float | None) -> float:
    return LOWEST_LOGPROB if logprob is None or not logprob > LOWEST_LOGPROB else logprob
