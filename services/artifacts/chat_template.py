"""Turns a conversation into token ids with the model's own chat template.

Knows messages, and that only the template's own text may become control tokens. Knows nothing of requests,
limits on output, or who asks. A conversation that is too long can be cut from the left, oldest turns first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from services.artifacts.content_marks import ContentMarks
from services.artifacts.long_text import TooManyTokens
from services.artifacts.template_budget import BudgetSpent, TemplateFailure, TemplateLimits
from services.artifacts.template_sandbox import SandboxedTemplate
from services.artifacts.tokenizer import ModelTokenizer
from services.domain.errors import Code, InvalidField, PromptTooLong, ServeError

ROLES = ("system", "user", "assistant", "tool")


class ChatMessage(Protocol):
    """One message of a conversation, whoever defines it."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...
    @property
    def name(self) -> str | None: ...


class TemplateRefused(InvalidField):
    """The model's template refuses this conversation (-> INVALID_ARGUMENT with the template's words)."""

    reason = "TEMPLATE_REFUSED"


class TemplateTooCostly(ServeError):
    """The model's template ran over its limits (-> INTERNAL: the model is at fault, not the caller)."""

    code = Code.INTERNAL
    reason = "TEMPLATE_TOO_COSTLY"


@dataclass(frozen=True, slots=True)
class FittedChat:
    """A conversation that fits, and what it cost."""

    ids: list[int]
    num_dropped: int
    """Messages left out, the oldest that are not the system's."""
    num_cut_chars: int
    """Characters cut off the front of the last message, 0 unless nothing else helped."""
    num_cut_tokens: int
    """Tokens that all this saved; of a conversation far too long, at least so many."""


@dataclass(frozen=True, slots=True)
class _Message:
    role: str
    content: str
    name: str | None


class ChatTemplate:
    """A model's template with its tokeniser."""

    def __init__(
        self,
        source: str,
        tokenizer: ModelTokenizer,
        *,
        limits: TemplateLimits = TemplateLimits(),  # noqa: B008 (frozen)
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile the template.

        Raises:
            ArtifactError: It does not compile, or uses what we do not offer.
        """
        self._source = source
        self._tokenizer = tokenizer
        self._template = SandboxedTemplate(source, limits=limits, now=now)
        self._marks = ContentMarks(tokenizer.special_tokens, self._template.constants)
        special = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        self._variables = {
            key: "" if token_id is None else tokenizer.token_text(token_id)
            for key, token_id in special.items()
        }

    def encode(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        max_tokens: int | None = None,
    ) -> list[int]:
        """Return the ids of a conversation, ready for the assistant's next turn.

        Benign conversations give the reference library's ids; spellings of control tokens in contents and
        names stay ordinary text.

        Args:
            max_tokens: What may be of use; the result can still be longer.

        Raises:
            InvalidField: No messages, an unknown role, or content that is no text.
            TemplateRefused: The template refuses the conversation.
            TemplateTooCostly: The template ran over its limits.
            TooManyTokens: It is far longer than `max_tokens`; little more than so many were made.
        """
        return self._encode(
            _checked(messages), add_generation_prompt=add_generation_prompt, max_tokens=max_tokens
        )

    def encode_to_fit(self, messages: Sequence[ChatMessage], max_tokens: int) -> FittedChat:
        """Return the ids of as much of a conversation as fits into `max_tokens`.

        System messages and the newest turns stay; the oldest turns go, whole, so that what is left begins
        with a user's message. When the last message alone is too long its beginning is cut.

        Raises:
            PromptTooLong: System messages and an all but empty last message do not fit.
            InvalidField, TemplateRefused, TemplateTooCostly: As `encode`.
        """
        checked = _checked(messages)
        whole = self._fitting(checked, max_tokens)
        if isinstance(whole, list):
            return FittedChat(whole, 0, 0, 0)
        candidates = _shorter_conversations(checked)
        fitting = self._first_fitting(candidates, max_tokens)
        if fitting is not None:
            kept, ids = fitting
            num_cut_chars = 0
        else:
            kept = candidates[-1] if candidates else checked
            num_cut_chars, ids = self._cut_last(kept, max_tokens)
        return FittedChat(ids, len(checked) - len(kept), num_cut_chars, whole - len(ids))

    def _fitting(self, messages: Sequence[_Message], max_tokens: int) -> list[int] | int:
        """Return the ids of a conversation that fits, or at least how many tokens it has.

        Nothing is rendered or tokenised of one whose contents alone are too many characters.
        """
        num_chars = sum(len(message.content) for message in messages)
        fewest = num_chars // self._tokenizer.max_token_bytes
        if fewest > max_tokens:
            return fewest
        try:
            ids = self._encode(messages, max_tokens=max_tokens)
        except TooManyTokens:
            return max(fewest, max_tokens + 1)
        return ids if len(ids) <= max_tokens else len(ids)

    def _encode(
        self,
        messages: Sequence[_Message],
        *,
        add_generation_prompt: bool = True,
        max_tokens: int | None = None,
    ) -> list[int]:
        texts = [text for message in messages for text in (message.content, message.name) if text]
        tables = self._marks.choose([self._source, *texts])
        marked = [
            {
                "role": message.role,
                "content": self._marks.mark(message.content, tables),
                **({} if message.name is None else {"name": self._marks.mark(message.name, tables)}),
            }
            for message in messages
        ]
        try:
            rendered = self._template.render(
                {
                    **self._variables,
                    "messages": marked,
                    "tools": None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except TemplateFailure as exc:
            refusal = str(exc).translate(tables.restore)
            raise TemplateRefused("messages", f"the model's chat template refuses them: {refusal}") from exc
        except BudgetSpent as exc:
            raise TemplateTooCostly(f"the model's chat template ran over its limits: {exc}") from exc
        return self._tokenizer.encode_rendered(rendered, tables.restore, max_tokens=max_tokens)

    def _first_fitting(
        self, candidates: Sequence[Sequence[_Message]], max_tokens: int
    ) -> tuple[Sequence[_Message], list[int]] | None:
        """Return the longest candidate that fits, by bisection (each is shorter than the one before)."""
        best = None
        low, high = 0, len(candidates)
        while low < high:
            middle = (low + high) // 2
            ids = self._fitting(candidates[middle], max_tokens)
            if isinstance(ids, list):
                best, high = (candidates[middle], ids), middle
            else:
                low = middle + 1
        return best

    def _cut_last(self, messages: Sequence[_Message], max_tokens: int) -> tuple[int, list[int]]:
        """Return how many characters of the last message had to go, and the ids without them."""
        *others, last = messages

        def without(cut: int) -> list[int] | int:
            return self._fitting([*others, _Message(last.role, last.content[cut:], last.name)], max_tokens)

        most = len(last.content) - 1
        shortest = without(most)
        if not isinstance(shortest, list):
            raise PromptTooLong(
                "messages",
                f"must have at most {max_tokens} tokens in the system message and the end of the last one,"
                f" got {shortest} or more",
            )
        cut = self._tokenizer.start_of_last(last.content, max_tokens - len(shortest))
        # At its edge the content may take a token more than inside: then a little more has to go.
        step = 1
        while cut < most:
            ids = without(cut)
            if isinstance(ids, list):
                return cut, ids
            cut, step = cut + step, 2 * step
        return most, shortest


def _checked(messages: Sequence[ChatMessage]) -> list[_Message]:
    """Return the messages, validated.

    Raises:
        InvalidField: Which one is wrong and how.
    """
    if not messages:
        raise InvalidField("chat.messages", "must hold at least one message")
    checked = []
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidField(f"chat.messages[{index}].role", f"must be one of {', '.join(ROLES)}")
        if not isinstance(message.content, str):
            raise InvalidField(f"chat.messages[{index}].content", "must be text")
        if message.name is not None and not isinstance(message.name, str):
            raise InvalidField(f"chat.messages[{index}].name", "must be text")
        checked.append(_Message(message.role, message.content, message.name))
    if not any(message.content.strip() for message in checked):
        raise InvalidField("chat.messages", f"must not all be empty, got {len(checked)} without text")
    return checked


def _shorter_conversations(messages: Sequence[_Message]) -> list[Sequence[_Message]]:
    """Return what can be left of a conversation, longest first: system messages and the last one always."""
    turns = [index for index, message in enumerate(messages) if message.role != "system"]
    last = len(messages) - 1
    starts = [index for index in turns[1:] if messages[index].role == "user" or index == last]
    return [
        [message for index, message in enumerate(messages) if index >= start or message.role == "system"]
        for start in starts
    ]
