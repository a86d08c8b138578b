"""Prompts and conversations of OpenAI bodies -> the input of a `GenerationRequest`.

Knows shapes, not lengths. Nothing is ever fetched for a client: only text is taken.
"""

from typing import Any

from gateway.core.request import ChatTurn
from gateway.http.fields import Fields, as_integer, kind_of
from services.domain.errors import InvalidField

MAX_PROMPTS = 64
"""Prompts in one completions call."""

_ROLES = {"developer": "system"}
"""Newer names of roles that templates know under another."""
_NOT_SERVED_PARTS = ("image_url", "input_audio", "file", "video_url", "audio_url", "refusal")


def read_prompts(value: Any) -> list[dict[str, Any]]:
    """Read a text, token ids, or a list of either; each becomes the input fields of one request.

    Raises:
        InvalidField: It is none of these.
    """
    if isinstance(value, str):
        return [{"prompt": value}]
    if not isinstance(value, list) or not value:
        raise InvalidField(
            "prompt", f"must be a text, token ids, or a non-empty list of either, got {kind_of(value)}"
        )
    if not isinstance(value[0], (str, list)):
        return [{"token_ids": tuple(as_integer(v, f"prompt[{i}]") for i, v in enumerate(value))}]
    if len(value) > MAX_PROMPTS:
        raise InvalidField("prompt", f"must have at most {MAX_PROMPTS} entries, got {len(value)}")
    prompts: list[dict[str, Any]] = []
    for i, entry in enumerate(value):
        if isinstance(entry, str):
            prompts.append({"prompt": entry})
        elif isinstance(entry, list):
            ids = tuple(as_integer(v, f"prompt[{i}][{j}]") for j, v in enumerate(entry))
            prompts.append({"token_ids": ids})
        else:
            raise InvalidField(f"prompt[{i}]", f"must be a text or a list of token ids, got {kind_of(entry)}")
    return prompts


def read_messages(value: Any) -> tuple[tuple[ChatTurn, ...], list[str]]:
    """Read a conversation; return its turns and the names of fields that nothing here knows.

    Raises:
        InvalidField: A message has no role or no text, or asks for what is not served.
    """
    if not isinstance(value, list) or not value:
        raise InvalidField("messages", f"must be a non-empty list, got {kind_of(value)}")
    turns: list[ChatTurn] = []
    ignored: list[str] = []
    for i, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise InvalidField(f"messages[{i}]", f"must be an object, got {kind_of(entry)}")
        message = Fields(entry, f"messages[{i}].")
        message.refuse({"tool_calls": [], "function_call": None, "audio": None})
        role = message.string("role")
        if not role:
            raise message.wrong("role", f"must be given, got {kind_of(role)}")
        content = _content(message.raw("content"), f"messages[{i}].content", ignored)
        turns.append(ChatTurn(role=_ROLES.get(role, role), content=content, name=message.string("name")))
        ignored += message.ignored()
    return tuple(turns), ignored


def _content(value: Any, field: str, ignored: list[str]) -> str:
    """Return a text, or text parts joined by line breaks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise InvalidField(field, f"must be a text or a non-empty list of text parts, got {kind_of(value)}")
    texts = []
    for i, entry in enumerate(value):
        part = Fields(entry if isinstance(entry, dict) else {}, f"{field}[{i}].")
        kind = part.raw("type")
        if kind != "text":
            got = kind if kind in _NOT_SERVED_PARTS else kind_of(kind)
            raise InvalidField(f"{field}[{i}]", f"only parts of the type text are supported here, got {got}")
        text = part.string("text")
        if text is None:
            raise part.wrong("text", "must be given, got null")
        texts.append(text)
        ignored += part.ignored()
    return "\n".join(texts)
