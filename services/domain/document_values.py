"""Readers of plain values (text, numbers, lists, tables): each accepts a value or refuses it by its rule.

A refusal names the field, the rule, what was given and, where there is one, the nearest valid value, which is
in its metadata too. Knows no field.
"""

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from services.domain.errors import ErrorDetail, InvalidField

Reader = Callable[[str, object], Any]
"""(where, value) -> the value as the model has it, or InvalidField."""

# Ids go into Redis keys inside a hash tag, so no brace may be in one.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAX_SHOWN = 80
_MAX_COMPARED = 256
"""Characters: comparing takes time by their square, and whoever sent them has the reader wait."""


def refused(where: str, rule: str, value: object, nearest: object) -> InvalidField:
    """Return the refusal of a value."""
    message = f"must be {rule}, got {shown(value)}"
    metadata = {"rule": rule}
    if nearest is not None:
        message += f"; nearest valid: {nearest}"
        metadata["nearest"] = str(nearest)
    error = InvalidField(where, message)
    error.detail = ErrorDetail(field=where, metadata=metadata)
    return error


def shown(value: object) -> str:
    """Return a value as an error shows it, cut where it is long."""
    try:
        shown = repr(value)
    except ValueError:  # A number of more digits than Python writes.
        return f"an {type(value).__name__}"
    return shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "…"


def nearest_name(given: str, known: Collection[str]) -> str | None:
    """Return the known name that is most like `given`."""
    if len(given) > _MAX_COMPARED:
        return None
    close = difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.5)
    return close[0] if close else None


def a_whole(low: int, high: int) -> Reader:
    def read(where: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        number = _number_of(value)
        nearest = None if number is None else round(min(max(number, low), high))
        raise refused(where, f"a whole number from {low} to {high}", value, nearest)

    return read


def a_number(low: float, high: float) -> Reader:
    def read(where: str, value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        number = _number_of(value)
        nearest = None if number is None else min(max(number, low), high)
        raise refused(where, f"a number from {low:g} to {high:g}", value, nearest)

    return read


def _number_of(value: object) -> float | None:
    """Return the number that was probably meant."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int):
        return value
    try:
        number = float(value)
    except ValueError:
        return None
    return None if number != number else number


def false_or_true(where: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise refused(where, "true or false", value, None)


def a_text(most: int, *, least: int = 0) -> Reader:
    def read(where: str, value: object) -> str:
        if isinstance(value, str) and least <= len(value) <= most and value.isprintable():
            return value
        nearest = None
        if isinstance(value, str):
            kept = "".join(char for char in value if char.isprintable())[:most]
            nearest = repr(kept) if len(kept) >= least else None
        raise refused(where, f"a printable text of {least} to {most} characters", value, nearest)

    return read


def a_name(where: str, value: object) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    nearest = None
    if isinstance(value, str):
        kept = re.sub(r"[^A-Za-z0-9_.-]+", "-", value).strip("-_.")[:64]
        nearest = kept or None
    rule = "1 to 64 letters, digits, `_`, `.` or `-`, a letter or digit first"
    raise refused(where, rule, value, nearest)


def many_of(item: Reader, *, least: int = 0) -> Reader:
    def read(where: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) < least:
            raise refused(where, f"a list of {least} or more", value, None)
        return tuple(item(f"{where}[{index}]", one) for index, one in enumerate(value))

    return read


def map_of(key: Reader, item: Reader) -> Reader:
    def read(where: str, value: object) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise refused(where, "a table", value, None)
        return {key(where, name): item(f"{where}.{name}", one) for name, one in value.items()}

    return read


def a_table(
    make: Callable[..., Any],
    readers: Mapping[str, Reader],
    *,
    required: Sequence[str] = (),
    not_yet: Collection[str] = (),
) -> Reader:
    """Read a table of known fields into `make(**fields)`; a field that is None counts as absent."""

    def read(where: str, value: object) -> Any:
        if not isinstance(value, Mapping):
            raise refused(where or "tenant", f"a table of {', '.join(readers)}", value, None)
        prefix = f"{where}." if where else ""
        for name in value:
            if name in not_yet:
                raise InvalidField(f"{prefix}{name}", "is not yet supported: nothing would enforce it")
            if name not in readers:
                raise _unknown(prefix, str(name), readers)
        for name in required:
            if value.get(name) is None:
                raise InvalidField(f"{prefix}{name}", "must be given")
        return make(
            **{name: readers[name](f"{prefix}{name}", one) for name, one in value.items() if one is not None}
        )

    return read


def _unknown(prefix: str, name: str, readers: Mapping[str, Reader]) -> InvalidField:
    close = nearest_name(name, readers)
    hint = f"; did you mean {close}?" if close else f": known are {', '.join(readers)}"
    error = InvalidField(f"{prefix}{name}", f"is no field of it{hint}")
    error.detail = ErrorDetail(field=f"{prefix}{name}", metadata={} if close is None else {"nearest": close})
    return error
