"""Bytes of a body -> the JSON value in them, or which field of it is at fault.

Knows JSON and Unicode; does not know what any field means.
"""

import json
from typing import Any, NoReturn

import orjson

from services.domain.errors import InvalidField

MAX_NAME_CHARS = 64

_Path = tuple[Any, ...]
"""(path of what holds it, its name or index); empty of the whole body."""


def read_json(body: bytes) -> Any:
    """Return the value that a body holds.

    Raises:
        InvalidField: It is no JSON, or a text in it has half of a surrogate pair only, which is no Unicode;
            this names the field.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # Escaped, half a pair is valid JSON for others: a slow parser finds where it is.
        if b"\\ud" in body.lower():
            _refuse_surrogates(body)
        raise InvalidField("body", f"must be valid JSON, got {len(body)} bytes that are none") from error


def _refuse_surrogates(body: bytes) -> None:
    """Raise where a text of an else valid body is no Unicode."""
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return
    waiting: list[tuple[_Path, Any]] = [((), value)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, str):
            _check(_named(path), one)
        elif isinstance(one, dict):
            for name in one:
                _check("body", name)
            waiting += [((path, name), each) for name, each in reversed(one.items())]
        elif isinstance(one, list):
            waiting += [((path, index), each) for index, each in reversed(tuple(enumerate(one)))]


def _check(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidField(field, f"must be valid Unicode, got a lone surrogate at {exc.start}") from exc


def _named(path: _Path) -> str:
    parts: list[str] = []
    while path:
        path, part = path
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part[:MAX_NAME_CHARS]}")
    return "".join(reversed(parts)).removeprefix(".") or "body"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
