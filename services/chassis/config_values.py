"""Turn what a flag, a variable or a TOML key gave into a value of a field's type.

Knows types; does not know where the text came from or what the value is for.
"""

import ast
import dataclasses
import enum
import inspect
import itertools
import re
import textwrap
import types
import typing
from pathlib import Path
from typing import Any, NewType

ByteSize = NewType("ByteSize", int)
"""Bytes; written as `512MiB`, `2GB` or a plain number."""

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


class ValueRule(ValueError):
    """The value breaks the rule that the message states, e.g. `a whole number`."""


def parse_bytes(text: str) -> ByteSize:
    """Read a size such as `512MiB` (powers of 1,024) or `2GB` (powers of 1,000).

    Raises:
        ValueRule: It is none.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueRule("a size such as 512MiB or 2GB")
    return ByteSize(int(float(match.group(1)) * unit))


def convert(kind: Any, value: object) -> Any:
    """Turn `value` (text, or a TOML value) into the field type `kind`.

    Raises:
        ValueRule: It is not possible; the message is the rule.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = next(arg for arg in args if arg is not type(None))
        return None if value is None or value == "" else convert(inner, value)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueRule("a list")
        return tuple(convert(args[0], item) for item in value)
    if dataclasses.is_dataclass(kind):
        return _convert_table(kind, value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _convert_enum(kind, value)
    if kind is ByteSize:
        return parse_bytes(str(value))
    return _convert_scalar(kind, value)


def _convert_scalar(kind: Any, value: object) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() not in _TRUE | _FALSE:
            raise ValueRule("true or false")
        return str(value).lower() in _TRUE
    if kind is str:
        if not isinstance(value, str):
            raise ValueRule("a text")
        return value
    if kind is Path:
        return Path(str(value)).expanduser()
    if kind not in (int, float):
        raise TypeError(f"configuration fields cannot be of type {kind}")
    rule = "a whole number" if kind is int else "a number"
    if isinstance(value, bool) or (kind is int and isinstance(value, float)):
        raise ValueRule(rule)
    try:
        return kind(value)
    except (TypeError, ValueError) as exc:
        raise ValueRule(rule) from exc


def _convert_enum(kind: type[enum.Enum], value: object) -> enum.Enum:
    for member in kind:
        if str(value).lower() in (str(member.value).lower(), member.name.lower()):
            return member
    raise ValueRule("one of " + ", ".join(str(member.value) for member in kind))


def _convert_table(kind: Any, value: object) -> Any:
    hints = typing.get_type_hints(kind)
    names = ", ".join(hints)
    if not isinstance(value, dict) or not set(value) <= set(hints):
        raise ValueRule(f"a table of {names}")
    try:
        return kind(**{name: convert(hints[name], item) for name, item in value.items()})
    except ValueRule as exc:
        raise ValueRule(f"a table of {names} whose values fit: {exc}") from exc
    except TypeError as exc:
        raise ValueRule(f"a table of {names}") from exc


def describe(cls: type) -> dict[str, str]:
    """Return the string under each field of a dataclass, its own and inherited, as one line."""
    described: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            described |= _described_here(base)
    return described


def _described_here(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError):
        return {}
    described: dict[str, str] = {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for field, doc in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(doc, ast.Expr)
            and isinstance(doc.value, ast.Constant)
        ):
            described[field.target.id] = " ".join(str(doc.value.value).split())
    return described
