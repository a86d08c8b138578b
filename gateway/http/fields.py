"""Typed reading of a JSON body: what is absent, what is wrong, and what nobody asked for.

Knows types, not ranges (those are `core.validation`'s) and no endpoint.
"""

from collections.abc import Mapping
from typing import Any

from services.domain.errors import InvalidField

_NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number", list: "a list"}


class Fields:
    """One JSON object. A field that is null counts as absent; every field read is remembered."""

    def __init__(self, body: Mapping[str, Any], prefix: str = "") -> None:
        self._body = body
        self._prefix = prefix
        self._read: set[str] = set()

    def raw(self, name: str) -> Any:
        """Return the value as it came, None if absent."""
        self._read.add(name)
        return self._body.get(name)

    def names(self) -> list[str]:
        """Every name in the object, whether read or not."""
        return sorted(self._body)

    def string(self, name: str) -> str | None:
        value: str | None = self._typed(name, str)
        return value

    def boolean(self, name: str) -> bool | None:
        value: bool | None = self._typed(name, bool)
        return value

    def integer(self, name: str) -> int | None:
        value: int | None = self._typed(name, int)
        return value

    def number(self, name: str) -> float | None:
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(name, f"must be a number, got {kind_of(value)}")
        return float(value)

    def integers(self, name: str) -> tuple[int, ...]:
        values = self._typed(name, list)
        if values is None:
            return ()
        return tuple(as_integer(value, f"{self._prefix}{name}[{i}]") for i, value in enumerate(values))

    def object(self, name: str) -> "Fields | None":
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, f"must be an object, got {kind_of(value)}")
        return Fields(value, f"{self._prefix}{name}.")

    def refuse(self, names: Mapping[str, Any]) -> None:
        """Refuse fields that we know and do not serve; a value equal to its harmless default passes."""
        for name, harmless in names.items():
            value = self.raw(name)
            is_harmless = value == harmless and isinstance(value, bool) == isinstance(harmless, bool)
            if value is not None and not is_harmless:
                raise self.wrong(name, f"is not supported here, got {kind_of(value)}")

    def ignored(self) -> list[str]:
        """Names present in the body that nothing has read (null counts as absent)."""
        unread = self._body.keys() - self._read
        return sorted(f"{self._prefix}{name}" for name in unread if self._body[name] is not None)

    def wrong(self, name: str, message: str) -> InvalidField:
        return InvalidField(f"{self._prefix}{name}", message)

    def _typed(self, name: str, kind: type) -> Any:
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.wrong(name, f"must be {_NAMES[kind]}, got {kind_of(value)}")
        return value


def as_integer(value: Any, field: str) -> int:
    """Return `value` if it is a whole number (a boolean is none)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(field, f"must be a whole number, got {kind_of(value)}")
    return value


def kind_of(value: Any) -> str:
    """Name a JSON value without repeating it: it may hold a prompt."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else str(value)[:24]
    name = "string" if isinstance(value, str) else "list" if isinstance(value, list) else "object"
    return f"an empty {name}" if not value else f"an {name}" if name == "object" else f"a {name}"
