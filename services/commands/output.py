"""How commands print: rich on a terminal, plain text in a pipe, one JSON object a line with --json.

Knows values and streams, no command.
"""

import argparse
import dataclasses
import enum
import sys
from typing import Any

import orjson
from rich.console import Console

_PIPE_COLUMNS = 1000
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
"""Escape, for one, is written as its picture. Those of 8 bits have none."""


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


def console(*, stderr: bool = False) -> Console:
    screen = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not screen.is_terminal:
        screen.width = _PIPE_COLUMNS  # Nobody's lines are broken in a pipe.
    return screen


def print_json(value: Any, *, kind: str | None = None) -> None:
    """Print a dataclass, or a map of plain values, as one line; `kind` names it."""
    fields = (
        dataclasses.asdict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type)
        else value
    )
    line = fields if kind is None else {"event": kind, **fields}
    sys.stdout.buffer.write(orjson.dumps(line, default=_plain, option=orjson.OPT_NON_STR_KEYS) + b"\n")
    sys.stdout.buffer.flush()


def write_text(text: str) -> None:
    """Print a piece of an answer as it comes; a terminal is not made to obey what is in it."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts: `1 worker`, `2 workers`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def harmless(text: str) -> str:
    """Return a text with pictures for control characters: a model's words may hold commands to a terminal."""
    return text.translate(_PICTURES)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, enum.Enum):
        return value.value
    return str(value)
