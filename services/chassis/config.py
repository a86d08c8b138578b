"""Read one component's configuration into its frozen dataclass: flags > environment > file > default.

Knows types, names and where values come from. Does not know what any value means: rules between fields
belong into the dataclass's `__post_init__`, which raises ValueError (see `check_range`).
"""

import argparse
import dataclasses
import difflib
import enum
import inspect
import os
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from services.chassis.config_values import ByteSize, ValueRule, convert, describe, parse_bytes
from services.chassis.fatal import ConfigError

__all__ = ["SECTIONS", "ByteSize", "ConfigError", "check_range", "config_file", "load", "parse_bytes"]

T = TypeVar("T")

SECTIONS = frozenset({"gateway", "scheduler", "kvmanager", "worker", "up", "tenants", "tls"})
"""Sections a configuration file may hold; a component reads its own and skips the others."""


def load(
    cls: type[T],
    section: str,
    *,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    prog: str | None = None,
    description: str | None = None,
    examples: str | None = None,
) -> T:
    """Build `cls` from flags, `QUIRE_<SECTION>_<FIELD>`, the file's `[section]` and its defaults.

    Field types: str, int, float, bool, Path, ByteSize, enums, `X | None`, `tuple[str, ...]` (repeat the
    flag; commas in the environment) and, in the file only, `tuple[SomeDataclass, ...]`.

    Args:
        argv: Flags; None reads this process's own. `--help` prints and exits.
        examples: Shown under the help. A field `config` gets the path of the file that was read.
        file: Used when neither `--config` nor QUIRE_CONFIG names one.

    Raises:
        ConfigError: One line naming the field, the rule and what was given.
    """
    environ = os.environ if environ is None else environ
    hints = typing.get_type_hints(cls)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    flags = _parse_flags(cls, fields, section, argv, prog, description, examples)
    path = flags.pop("config", None) or environ.get("QUIRE_CONFIG") or file
    values: dict[str, Any] = {}
    if path is not None:
        values |= _from_file(Path(path), section, fields)
    values |= _from_environ(environ, section, fields)
    if path is not None and "config" in fields:
        values["config"] = Path(path)
    for name, text in flags.items():
        values[name] = _converted(f"--{name.replace('_', '-')}", fields[name], text)
    try:
        return cls(**values)
    except TypeError as exc:
        missing = [f.name for f in dataclasses.fields(cls) if _is_required(f) and f.name not in values]  # type: ignore[arg-type]
        if not missing:
            raise
        raise ConfigError(f"{section}: --{missing[0].replace('_', '-')} must be given") from exc
    except ValueError as exc:
        raise ConfigError(f"{section}: {exc}") from exc


def config_file(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the file that `--config` or QUIRE_CONFIG names; None without one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    given: str | None = parser.parse_known_args(argv)[0].config
    path = given or (os.environ if environ is None else environ).get("QUIRE_CONFIG")
    return Path(path) if path else None


def check_range(name: str, value: float, low: float | None = None, high: float | None = None) -> None:
    """Raise ValueError unless low <= value <= high; for `__post_init__`."""
    if (low is not None and value < low) or (high is not None and value > high):
        rule = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
        raise ValueError(f"{name} must be {rule}, got {value}")


def _parse_flags(
    cls: type,
    fields: dict[str, Any],
    section: str,
    argv: Sequence[str] | None,
    prog: str | None,
    text: str | None,
    examples: str | None,
) -> dict[str, Any]:
    parser = _Parser(
        prog=prog or f"quire {section}",
        description=text or inspect.cleandoc(cls.__doc__ or ""),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with a section of this component")
    help_of = describe(cls)
    for field in dataclasses.fields(cls):
        kind = fields[field.name]
        if _is_table(kind) or field.name == "config":
            continue
        name = f"--{field.name.replace('_', '-')}"
        note = f"{help_of.get(field.name, '')} [{_shown_default(field)}]".replace("%", "%%").strip()
        if kind is bool:
            parser.add_argument(name, action=argparse.BooleanOptionalAction, help=note)
        elif typing.get_origin(kind) is tuple:
            parser.add_argument(name, action="append", help=f"{note} (may be repeated)")
        else:
            parser.add_argument(name, metavar=field.name.split("_")[-1].upper(), help=note)
    parsed, rest = parser.parse_known_args(argv)
    if rest:
        known = [f"--{name.replace('_', '-')}" for name in fields] + ["--config"]
        raise ConfigError(f"unknown flag {rest[0]}{_nearest(rest[0].split('=')[0], known)}")
    return vars(parsed)


def _from_file(path: Path, section: str, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"cannot read {path}: {exc}") from exc
    for key in document:
        if key not in SECTIONS:
            raise ConfigError(f"{path}: unknown section [{key}]{_nearest(key, SECTIONS)}")
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {section} must be a section, got {table!r}")
    values = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise ConfigError(f"{path}: [{section}] has an unknown key {key}{_nearest(name, fields)}")
        values[name] = _converted(f"{path}: {section}.{key}", fields[name], value)
    return values


def _from_environ(environ: Mapping[str, str], section: str, fields: dict[str, Any]) -> dict[str, Any]:
    prefix = f"QUIRE_{section.upper()}_"
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue
        name = variable.removeprefix(prefix).lower()
        if name not in fields or _is_table(fields[name]):
            known = [prefix + field.upper() for field in fields]
            raise ConfigError(f"unknown variable {variable}{_nearest(variable, known)}")
        value: object = text.split(",") if typing.get_origin(fields[name]) is tuple else text
        values[name] = _converted(variable, fields[name], value)
    return values


def _converted(where: str, kind: Any, value: object) -> Any:
    try:
        return convert(kind, value)
    except ValueRule as exc:
        raise ConfigError(f"{where} must be {exc}, got {value!r}") from exc


def _is_table(kind: Any) -> bool:
    """Whether the field is a list of tables, which only a file can give."""
    return typing.get_origin(kind) is tuple and dataclasses.is_dataclass(typing.get_args(kind)[0])


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _shown_default(field: "dataclasses.Field[Any]") -> str:
    if _is_required(field):
        return "required"
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if isinstance(default, enum.Enum):
        default = default.value
    if default is False or default in (None, (), ""):
        return "default off" if default is False else "default none"
    return f"default {default}"


def _nearest(given: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)
