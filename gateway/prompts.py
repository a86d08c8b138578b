"""Turns a request's input into token ids and block names, off the event loop where that takes long.

Knows tokenizers and templates by their interface. Knows nothing of quotas, places or output.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from gateway.core.request import ChatTurn, GenerationRequest
from gateway.core.validation import ModelProfile, check_chat, check_prompt_bytes
from gateway.models import LocalModel, ServedModel, Template
from services.domain.block_hash import hash_blocks
from services.domain.errors import InvalidField
from services.domain.ids import BlockHash
from services.domain.prompt_digest import digest_prompt

T = TypeVar("T")

INLINE_CHARS = 1024
"""A prompt up to this length is tokenised at once: it takes half a millisecond, as long as a way through a
thread takes on an idle machine, and much less than on a busy one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A tokenised prompt."""

    ids: list[int]
    cut_tokens: int
    """Cut from its left; of a prompt far too long, at least so many."""
    block_hashes: list[BlockHash]
    """One per full block; empty on cache opt-out."""
    digest: bytes
    """Names it among its tenant's prompts to this model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Salts:
    """What a prompt is named under."""

    blocks: bytes
    """Of its blocks: the tenant's and the caller's own."""
    tenant: bytes
    """Of its digest, whatever the caller's own is."""


class PromptEncoder:
    """Tokenises long prompts in an executor, so that they hold up nobody else.

    Args:
        observe: Told the seconds that each prompt took.
    """

    def __init__(self, executor: Executor, observe: Callable[[float], None]) -> None:
        self._executor = executor
        self._observe = observe

    async def encode(
        self,
        request: GenerationRequest,
        model: ServedModel,
        salts: Salts,
        max_tokens: int,
    ) -> Prompt:
        """Tokenise the prompt of a request whose fields are checked.

        Args:
            max_tokens: Prompt tokens that fit. A prompt that may be cut has no more; of any other no more
                are made than it takes to see that it is too long.

        Raises:
            InvalidField: The template refuses the conversation, or there is none.
            TooManyTokens: The prompt has more than `max_tokens`; one with few too many is returned.
        """
        return await self._run(
            _length(request),
            lambda: encode_prompt(request, model.local, salts, max_tokens),
        )

    async def tokenize(
        self, profile: ModelProfile, model: LocalModel, text: str | None, chat: tuple[ChatTurn, ...] | None
    ) -> list[int]:
        """Return the ids that a generation with the same input would begin with.

        Raises:
            InvalidField: Not exactly one input, or one that is too long or refused.
        """
        if (text is None) == (chat is None):
            found = "none" if text is None else "both"
            raise InvalidField("input", f"exactly one of text and chat must be given, got {found}")
        request = GenerationRequest(model=model.name, prompt=text, chat=chat)
        if text is not None:
            check_prompt_bytes("text", text, profile.max_prompt_bytes)
        else:
            check_chat(request, profile.max_prompt_bytes)
        return await self._run(_length(request), lambda: _ids_of(request, model, None))

    async def _run(self, length: int, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            if length <= INLINE_CHARS:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._observe(time.perf_counter() - started)


def encode_prompt(request: GenerationRequest, model: LocalModel, salts: Salts, max_tokens: int) -> Prompt:
    """Tokenise, cut if allowed and needed, and name the blocks.

    Raises:
        TooManyTokens: See `PromptEncoder.encode`.
    """
    if request.cut_left:
        ids, num_cut = _fitted(request, model, max_tokens)
    else:
        ids, num_cut = _ids_of(request, model, max_tokens), 0
    hashes = [] if request.cache_opt_out else hash_blocks(ids, salt=salts.blocks)
    digest = digest_prompt(ids, salt=salts.tenant, model=model.name)
    return Prompt(ids=ids, cut_tokens=num_cut, block_hashes=hashes, digest=digest)


def _length(request: GenerationRequest) -> int:
    """Return the size of a request's input in characters or ids."""
    if request.chat is not None:
        return sum(len(turn.content) for turn in request.chat)
    return len(request.prompt or request.token_ids or ())


def _ids_of(request: GenerationRequest, model: LocalModel, max_tokens: int | None) -> list[int]:
    if request.token_ids is not None:
        return list(request.token_ids)
    if request.chat is not None:
        return _template_of(model).encode(request.chat, max_tokens=max_tokens)
    assert request.prompt is not None
    return model.tokenizer.encode_text(request.prompt, add_bos=True, max_tokens=max_tokens)


def _fitted(request: GenerationRequest, model: LocalModel, max_tokens: int) -> tuple[list[int], int]:
    """Drop the oldest part: whole turns of a conversation, tokens of anything else (BOS stays)."""
    if request.chat is not None:
        chat = _template_of(model).encode_to_fit(request.chat, max_tokens)
        return chat.ids, chat.num_cut_tokens
    if request.prompt is not None:
        text = model.tokenizer.encode_text_to_fit(request.prompt, max_tokens, add_bos=True)
        return text.ids, text.num_cut_tokens
    assert request.token_ids is not None
    ids = request.token_ids
    begin = ids[:1] if ids[0] == model.tokenizer.bos_id and 1 < max_tokens < len(ids) else ()
    kept = [*begin, *ids[max(0, len(ids) - max_tokens + len(begin)) :]]
    return kept, len(ids) - len(kept)


def _template_of(model: LocalModel) -> Template:
    if model.template is None:
        raise InvalidField("chat", f"the model {model.name} has no chat template: send a prompt instead")
    return model.template
