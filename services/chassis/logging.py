"""Log lines as JSON on stderr: a constant event name, values as keywords, ids from the context.

Only fields of plain, bounded kinds are written; what callers must never pass (prompts, outputs, keys) is
dropped by name as a second guard.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import orjson
import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars

__all__ = ["LEVELS", "bound_ids", "configure_logging"]

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_SECRET: Final = frozenset(
    {"prompt", "text", "output", "content", "messages", "chat", "stop"}
    | {"token_ids", "prompt_ids", "output_ids", "salt"}
    | {"api_key", "key_secret", "authorization", "password", "secret"}
)
_MAX_CHARS: Final = 500


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
            merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _drop_secrets,
            name_service,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.BytesLoggerFactory(file=sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        stream=sys.stderr, level=logging.ERROR, force=True, format='{"event":"library","at":"%(name)s"}'
    )


def bound_ids(
    *, request_id: str | None = None, tenant: str | None = None, trace_id: str | None = None
) -> Any:
    """Bind ids to every line that is logged inside the `with` block (and in tasks started there)."""
    ids = {"request_id": request_id, "tenant": tenant, "trace_id": trace_id}
    return bound_contextvars(**{name: value for name, value in ids.items() if value})


def _drop_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in list(event.items()):
        if name in _SECRET:
            event[name] = "[dropped]"
        elif isinstance(value, str) and len(value) > _MAX_CHARS and name != "exception":
            event[name] = value[:_MAX_CHARS] + "…"
    return event


def _dumps(value: Any, default: Any = None, **_: Any) -> bytes:
    return orjson.dumps(value, default=default or repr, option=orjson.OPT_NON_STR_KEYS)
