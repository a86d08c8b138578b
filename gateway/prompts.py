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

T = TypeVar("T")

INLINE_CHARS = 1024
"""A prompt up to this length is tokenised at once: it takes half a millisecond, as long as a way through a
thread takes on an idle machine, and much less than on a busy one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A tokenised prompt."""

    ids: list[int]
    cut_tokens: int
    """Cut from its left."""
    block_hashes: list[BlockHash]
    """One per full block; empty on cache opt-out."""


class PromptEncoder:
    """Tokenises long prompts in an executor, so that they hold up nobody else.

    Args:
        observe: Told the seconds that each prompt took.
    """

    def __init__(self, executor: Executor, observe: Callable[[float], None]) -> None:
        self._executor = executor
        self._observe = observe

    async def encode(self, request: GenerationRequest, model: ServedModel, salt: bytes, room: int) -> Prompt:
        """Tokenise the prompt of a request whose fields are checked.

        Args:
            room: Prompt tokens that fit; used where the prompt may be cut.

        Raises:
            InvalidField: The template refuses the conversation, or there is none.
        """
        return await self._run(_length(request), lambda: encode_prompt(request, model.local, salt, room))

    async def tokenize(
        self, profile: ModelProfile, model: LocalModel, text: str | None, chat: tuple[ChatTurn, ...] | None
    ) -> list[int]:
        """Return the ids that a generation with the same input would begin with.

        Raises:
            InvalidField: Not exactly one input, or one that is too long or refused.
        """
        if (text is None) == (chat is None):
            raise InvalidField("input", "exactly one of text and chat must be given")
        request = GenerationRequest(model=model.name, prompt=text, chat=chat)
        if text is not None:
            check_prompt_bytes("text", text, profile.max_prompt_bytes)
        else:
            check_chat(request, profile.max_prompt_bytes)
        return await self._run(_length(request), lambda: _ids_of(request, model))

    async def _run(self, length: int, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            if length <= INLINE_CHARS:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._observe(time.perf_counter() - started)


def encode_prompt(request: GenerationRequest, model: LocalModel, salt: bytes, room: int) -> Prompt:
    """Tokenise, cut if allowed and needed, and name the blocks."""
    ids = _ids_of(request, model)
    num_all = len(ids)
    if request.cut_left and num_all > room:
        ids = _cut(request, model, ids, room)
    hashes = [] if request.cache_opt_out else hash_blocks(ids, salt=salt)
    return Prompt(ids=ids, cut_tokens=num_all - len(ids), block_hashes=hashes)


def _length(request: GenerationRequest) -> int:
    """Return the size of a request's input in characters or ids."""
    if request.chat is not None:
        return sum(len(turn.content) for turn in request.chat)
    return len(request.prompt or request.token_ids or ())


def _ids_of(request: GenerationRequest, model: LocalModel) -> list[int]:
    if request.token_ids is not None:
        return list(request.token_ids)
    if request.chat is not None:
        return _template_of(model).encode(request.chat)
    assert request.prompt is not None
    return model.tokenizer.encode_text(request.prompt, add_bos=True)


def _cut(request: GenerationRequest, model: LocalModel, ids: list[int], room: int) -> list[int]:
    """Drop the oldest part: whole turns of a conversation, tokens of anything else (BOS stays)."""
    if request.chat is not None:
        return list(_template_of(model).encode_to_fit(request.chat, room).ids)
    keeps_bos = ids[0] == model.tokenizer.bos_id and room > 1
    tail = ids[len(ids) - room + keeps_bos :] if room > 0 else []
    return [ids[0], *tail] if keeps_bos else tail


def _template_of(model: LocalModel) -> Template:
    if model.template is None:
        raise InvalidField("chat", f"the model {model.name} has no chat template: send a prompt instead")
    return model.template
