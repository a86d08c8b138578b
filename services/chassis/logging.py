"""Log lines as JSON on stderr: a constant event name, values as keywords, ids from the context.

Only fields of plain, bounded kinds are written; what callers must never pass (prompts, outputs, keys) is
dropped by name as a second guard.
"""

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, Final

import orjson
import structlog

__all__ = ["LEVELS", "configure_logging"]

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_SECRET: Final = frozenset(
    {"prompt", "text", "output", "content", "messages", "chat", "stop"}
    | {"token_ids", "prompt_ids", "output_ids", "salt"}
    | {"api_key", "key_secret", "authorization", "password", "secret"}
)
_MAX_CHARS: Final = 500
_MAX_CAUSES: Final = 8
_TELLABLE: Final = (AssertionError, AttributeError, ImportError, NameError, OSError, TypeError, RuntimeError)
"""Exceptions whose text speaks of our code or the machine."""


def configure_logging(service: str, *, level: str = "info") -> None:
    """Send every event of this process to stderr as one JSON object a line.

    Args:
        service: Written into each line.
        level: One of `LEVELS`.
    """

    def name_service(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["service"] = service
        return event

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _show_exception,
            _drop_secrets,
            name_service,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.BytesLoggerFactory(file=sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LibraryLine(service))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


class _LibraryLine(logging.Formatter):
    """A library's line: where it comes from and what kind of exception, never its text."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {"event": "library_warning", "logger": record.name, "service": self._service}
        if record.exc_info and record.exc_info[1] is not None:
            event["exception"] = _frames(record.exc_info[1])
        return _dumps(event).decode()


def _show_exception(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Write an exception as its types and frames. Its text is left out: it may quote a caller's data."""
    given = event.pop("exc_info", None)
    error = sys.exc_info()[1] if given is True else given
    if isinstance(error, BaseException):
        event["exception"] = _frames(error)
    return event


def _frames(error: BaseException) -> str:
    chain: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < _MAX_CAUSES:
        frames = traceback.extract_tb(cause.__traceback__)
        where = " < ".join(f"{frame.name} {frame.filename}:{frame.lineno}" for frame in reversed(frames))
        text = f": {cause}" if isinstance(cause, _TELLABLE) else ""
        chain.append(f"{type(cause).__name__}{text} in {where}")
        inner = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else None
        cause = inner or cause.__cause__ or cause.__context__
    return "; caused by ".join(chain)


def _drop_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in list(event.items()):
        if name in _SECRET:
            event[name] = "[dropped]"
        elif isinstance(value, str) and len(value) > _MAX_CHARS and name != "exception":
            event[name] = value[:_MAX_CHARS] + "…"
    return event


def _dumps(value: Any, default: Any = None, **_: Any) -> bytes:
    return orjson.dumps(value, default=default or repr, option=orjson.OPT_NON_STR_KEYS)
