"""Reads a calibration file and turns it into token sequences as the model will meet them.

Knows the three kinds of text and the model's tokeniser and template; knows nothing of methods.

A calibration file is JSON: `documents` are long texts, `questions` short ones, `conversations` lists of
turns, each `{"role": "user" | "assistant", "content": text}`. All three kinds must be there: factors found
on one kind alone suit that kind alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from services.artifacts.artifact import ModelArtifact
from services.domain.errors import ServeError
from worker.quantize.errors import QuantizeError

MAX_TOKENS = 512
"""Tokens in a sequence; longer documents become several."""
_KINDS = ("documents", "questions", "conversations")
_ROLES = ("user", "assistant", "system")
_OURS = "calibration.json"


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: str
    content: str
    name: None = None


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Text of three kinds."""

    documents: tuple[str, ...]
    questions: tuple[str, ...]
    conversations: tuple[tuple[Turn, ...], ...]


def our_calibration() -> CalibrationText:
    """Return the text that ships with the package: English, code, Chinese, numbers."""
    text = resources.files("worker.quantize").joinpath(_OURS).read_text(encoding="utf-8")
    return _parse(text, _OURS)


def read_calibration(path: Path) -> CalibrationText:
    """Read a calibration file.

    Raises:
        QuantizeError: Missing, damaged, or a field is not what it should be; names file and field.
    """
    try:
        return _parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as exc:
        raise QuantizeError(f"{path}: cannot be read ({exc}); give a calibration file in JSON") from exc


def tokenise(text: CalibrationText, artifact: ModelArtifact) -> list[list[int]]:
    """Return token sequences of at most `MAX_TOKENS`: documents plain, the others through the template.

    Raises:
        ArtifactError: The model has no tokeniser, or one that we do not read.
        QuantizeError: The model's template refuses a conversation.
    """
    tokenizer, template = artifact.tokenizer, artifact.template
    sequences: list[list[int]] = []
    for document in text.documents:
        ids = tokenizer.encode_text(document, add_bos=True)
        sequences += [ids[start : start + MAX_TOKENS] for start in range(0, len(ids), MAX_TOKENS)]
    conversations = [*((Turn("user", question),) for question in text.questions), *text.conversations]
    for turns in conversations:
        if template is None:
            plain = "\n\n".join(turn.content for turn in turns)
            ids = tokenizer.encode_text(plain, add_bos=True)
        else:
            try:
                ids = template.encode(turns, add_generation_prompt=len(turns) == 1)
            except ServeError as exc:
                raise QuantizeError(f"calibration: {exc}; leave out what the model does not know") from exc
        sequences.append(ids[:MAX_TOKENS])
    return [ids for ids in sequences if ids]


def _parse(text: str, source: str) -> CalibrationText:
    try:
        fields = json.loads(text)
    except ValueError as exc:
        raise QuantizeError(f"{source}: is not JSON ({exc})") from exc
    if not isinstance(fields, dict) or set(fields) != set(_KINDS):
        found = ", ".join(map(str, fields)) if isinstance(fields, dict) else type(fields).__name__
        raise QuantizeError(f"{source}: needs exactly the fields {', '.join(_KINDS)}, found {found}")
    for kind in _KINDS:
        if not isinstance(fields[kind], list) or not fields[kind]:
            raise QuantizeError(f"{source}: {kind} must be a list that is not empty")
    return CalibrationText(
        documents=_texts(fields["documents"], f"{source}: documents"),
        questions=_texts(fields["questions"], f"{source}: questions"),
        conversations=tuple(
            _turns(turns, f"{source}: conversations[{i}]") for i, turns in enumerate(fields["conversations"])
        ),
    )


def _texts(values: Sequence[Any], where: str) -> tuple[str, ...]:
    for i, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            raise QuantizeError(f"{where}[{i}] must be a text that is not empty")
    return tuple(values)


def _turns(values: Any, where: str) -> tuple[Turn, ...]:
    if not isinstance(values, list) or len(values) < 2:
        raise QuantizeError(f"{where} must be a list of two turns or more")
    for i, value in enumerate(values):
        if not isinstance(value, dict) or value.get("role") not in _ROLES:
            raise QuantizeError(f"{where}[{i}].role must be one of {', '.join(_ROLES)}")
        if not isinstance(value.get("content"), str) or not value["content"].strip():
            raise QuantizeError(f"{where}[{i}].content must be a text that is not empty")
    return tuple(Turn(value["role"], value["content"]) for value in values)
