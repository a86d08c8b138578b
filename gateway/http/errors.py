"""`ServeError` -> HTTP status, headers and OpenAI's error body. Nothing internal leaves here."""

import math
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gateway.core.limit_status import duration
from services.chassis import errors
from services.domain.errors import Code, Draining, InvalidField, ServeError

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
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


_RETRY_IS_USELESS = (Code.ABORTED, Code.ALREADY_EXISTS, Code.RESOURCE_EXHAUSTED)
"""Without a time to come back, these stay as they are; OpenAI's clients would try again all the same."""
_DEFAULT_RETRY_S = 1.0
_ROUTES = "/v1/models, /v1/completions, /v1/chat/completions, /v1/usage"


class BodyTooLarge(InvalidField):
    """The body is over the byte cap (-> 413)."""

    reason = "BODY_TOO_LARGE"


class BodyTooSlow(ServeError):
    """The body did not arrive in time (-> 408)."""

    code = Code.DEADLINE_EXCEEDED
    reason = "BODY_TOO_SLOW"


def status_of(error: ServeError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, BodyTooLarge):
        return 413
    return 408 if isinstance(error, BodyTooSlow) else _STATUS[error.code]


def body_of(error: ServeError) -> dict[str, Any]:
    """Return OpenAI's error object; `code` is our stable reason."""
    detail = error.detail
    body = _body(status_of(error), error.message, error.reason, detail.field)
    if detail.usage is not None:
        body["error"]["usage"] = {
            "prompt_tokens": detail.usage.prompt_tokens,
            "completion_tokens": detail.usage.output_tokens,
            "total_tokens": detail.usage.prompt_tokens + detail.usage.output_tokens,
        }
    return body


def headers_of(error: ServeError) -> dict[str, str]:
    """Return the headers that tell a client when to come back, and what its limits are."""
    headers = {}
    after_s = error.detail.retry_after_s
    if after_s is None and error.code is Code.UNAVAILABLE:
        after_s = _DEFAULT_RETRY_S
    if after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(after_s)))
    elif error.code in _RETRY_IS_USELESS:
        headers["x-should-retry"] = "false"
    if error.code is Code.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, (BodyTooLarge, BodyTooSlow, Draining)):
        headers["connection"] = "close"
    hit = _rate_limit(error)
    # The numbers of the limit that was hit stand in for those of another of its kind, the reset too.
    hidden = {_kind(name) for name in hit}
    rates = error.detail.rate_limits.items()
    return headers | {name: value for name, value in rates if _kind(name) not in hidden} | hit


def response_of(error: ServeError, more: dict[str, str] | None = None) -> Response:
    """Return the whole answer to a call that failed before its answer began."""
    headers = headers_of(error) | (more or {})
    return Response(orjson.dumps(body_of(error)), status_of(error), headers, "application/json")


def response_of_route(error: HTTPException) -> Response:
    """Return the answer to a call of a route or method that does not exist."""
    reason, message = (
        ("METHOD_NOT_ALLOWED", "this method is not served here")
        if error.status_code == 405
        else ("UNKNOWN_ROUTE", f"there is nothing here; see {_ROUTES}")
    )
    body = orjson.dumps(_body(error.status_code, message, reason, None))
    return Response(body, error.status_code, error.headers, "application/json")


def internal_error(error: Exception) -> ServeError:
    """Log a fault of ours and return what a caller may see of it."""
    return errors.internal_error("http", error)


def _body(status: int, message: str, reason: str, param: str | None) -> dict[str, Any]:
    kind = _TYPE.get(status, "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": reason}}


def _kind(name: str) -> str:
    """Return `prompt-tokens` of `x-ratelimit-reset-prompt-tokens`."""
    return name.removeprefix("x-ratelimit-").partition("-")[2]


def _rate_limit(error: ServeError) -> dict[str, str]:
    """Return the limit that was hit, in the headers that OpenAI's clients look at."""
    scope, numbers = error.detail.quota, error.detail.metadata
    if error.code is not Code.RESOURCE_EXHAUSTED or scope is None or "limit" not in numbers:
        return {}
    kind = "tokens" if scope.endswith(("tokens_per_minute", "budget")) else "requests"
    limit = numbers["limit"]
    left = numbers.get("left") or str(max(0, int(limit) - int(numbers.get("used", limit))))
    headers = {f"x-ratelimit-limit-{kind}": limit, f"x-ratelimit-remaining-{kind}": left}
    if error.detail.retry_after_s is not None:
        headers[f"x-ratelimit-reset-{kind}"] = duration(error.detail.retry_after_s)
    return headers
