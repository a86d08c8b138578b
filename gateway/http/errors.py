"""`ServeError` -> HTTP status, headers and OpenAI's error body. Nothing internal leaves here."""

import math
from typing import Any

from services.domain.errors import Code, ServeError

_STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ABORTED: 409,
    Code.ALREADY_EXISTS: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
_TYPE = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class BodyTooLarge(ServeError):
    """The body is over the byte cap (-> 413)."""

    code = Code.INVALID_ARGUMENT
    reason = "BODY_TOO_LARGE"


def status_of(error: ServeError) -> int:
    """Return the HTTP status of an error."""
    return 413 if isinstance(error, BodyTooLarge) else _STATUS[error.code]


def body_of(error: ServeError) -> dict[str, Any]:
    """Return OpenAI's error object; `code` is our stable reason."""
    detail = error.detail
    body: dict[str, Any] = {
        "message": error.message,
        "type": _TYPE.get(status_of(error), "server_error"),
        "param": detail.field,
        "code": error.reason,
    }
    if detail.usage is not None:
        body["usage"] = {
            "prompt_tokens": detail.usage.prompt_tokens,
            "completion_tokens": detail.usage.output_tokens,
            "total_tokens": detail.usage.prompt_tokens + detail.usage.output_tokens,
        }
    return {"error": body}


def headers_of(error: ServeError) -> dict[str, str]:
    """Return the headers that tell a client when to come back."""
    after = error.detail.retry_after_s
    return {} if after is None else {"retry-after": str(max(1, math.ceil(after)))}
