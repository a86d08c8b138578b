"""Typed refusals and failures. Only the gRPC interceptor and the HTTP adapter turn them into a status.

Knows the code and the reason of an error; knows nothing of grpc or HTTP.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from services.domain.generation import Usage


class Code(Enum):
    """The gRPC codes we use, by name, so that pure code needs no grpc."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    ABORTED = 10
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    """What a caller can act on besides the code and the reason."""

    field: str | None = None
    """The request field at fault, in proto spelling, e.g. `sampling.top_p`."""
    retry_after_s: float | None = None
    """Seconds after which a retry makes sense; None when a retry cannot help."""
    quota: str | None = None
    """The limit that was hit, e.g. `tenant/local/concurrency`."""
    usage: Usage | None = None
    """What the request had used when it ended."""
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Numbers behind the refusal (need, limit), never text of prompts or outputs."""
    rate_limits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What the answer tells of the caller's rates, by the name of its header or metadata."""


class ServeError(Exception):
    """Base of every error a caller may see. `reason` is stable API, the message is for people."""

    code: Code = Code.INTERNAL
    reason: str = "INTERNAL"

    def __init__(self, message: str, detail: ErrorDetail | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail if detail is not None else ErrorDetail()


class InvalidField(ServeError):
    """A field is missing, malformed or out of range (-> INVALID_ARGUMENT + BadRequest)."""

    code = Code.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", ErrorDetail(field=field))


class PromptTooLong(InvalidField):
    """Prompt and output cannot fit into the model's context or the pool (-> INVALID_ARGUMENT)."""

    reason = "PROMPT_TOO_LONG"


class PromptQuarantined(InvalidField):
    """Workers died with this prompt; it is not served for a time (-> INVALID_ARGUMENT)."""

    reason = "PROMPT_QUARANTINED"


class UnknownModel(ServeError):
    """No such model is served here (-> NOT_FOUND)."""

    code = Code.NOT_FOUND
    reason = "UNKNOWN_MODEL"


class UnknownRequest(ServeError):
    """No request of that id is known to this tenant (-> NOT_FOUND)."""

    code = Code.NOT_FOUND
    reason = "UNKNOWN_REQUEST"


class UnknownTenant(ServeError):
    """No such tenant is known (-> NOT_FOUND)."""

    code = Code.NOT_FOUND
    reason = "UNKNOWN_TENANT"


class UnknownKey(ServeError):
    """No such API key is known (-> NOT_FOUND)."""

    code = Code.NOT_FOUND
    reason = "UNKNOWN_KEY"


class NameTaken(ServeError):
    """There is something of that name already (-> ALREADY_EXISTS)."""

    code = Code.ALREADY_EXISTS
    reason = "NAME_TAKEN"


class BadCredential(ServeError):
    """A key was given and is not valid, or one is needed and missing (-> UNAUTHENTICATED)."""

    code = Code.UNAUTHENTICATED
    reason = "BAD_CREDENTIAL"


class NotYours(ServeError):
    """The credential is valid but may not do this (-> PERMISSION_DENIED)."""

    code = Code.PERMISSION_DENIED
    reason = "NOT_YOURS"


class QuotaExceeded(ServeError):
    """A limit of the tenant is reached (-> RESOURCE_EXHAUSTED + QuotaFailure + RetryInfo)."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "QUOTA_EXCEEDED"


def over_cap(need: int, cap: int, usage: Usage | None = None) -> QuotaExceeded:
    """Return the refusal of a request that needs more KV pages than its tenant may ever hold."""
    numbers = {"what": "KV pages", "need": str(need), "limit": str(cap)}
    return QuotaExceeded(
        f"the request needs {need} KV pages, the tenant may hold {cap}",
        ErrorDetail(quota="tenant/kv_pages", usage=usage, metadata=numbers),
    )


class QueueFull(ServeError):
    """The scheduler's queue is at its bound (-> RESOURCE_EXHAUSTED)."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "QUEUE_FULL"


class Overloaded(ServeError):
    """The ladder of degradation lets nothing more of the request's band in (-> RESOURCE_EXHAUSTED)."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "OVERLOADED"


class NoWorker(ServeError):
    """No worker serves the model now (-> UNAVAILABLE)."""

    code = Code.UNAVAILABLE
    reason = "NO_WORKER"


class WorkerLost(ServeError):
    """The worker died or vanished mid-request (-> UNAVAILABLE, with usage so far)."""

    code = Code.UNAVAILABLE
    reason = "WORKER_LOST"


class Draining(ServeError):
    """The process is shutting down (-> UNAVAILABLE with pushback)."""

    code = Code.UNAVAILABLE
    reason = "DRAINING"


class DependencyDown(ServeError):
    """A store or a peer that this call needs does not answer (-> UNAVAILABLE)."""

    code = Code.UNAVAILABLE
    reason = "DEPENDENCY_DOWN"


class NotRun(DependencyDown):
    """As DependencyDown, and the call surely did nothing there."""


class LimitExpired(ServeError):
    """The queue, first-token or total limit ran out (-> DEADLINE_EXCEEDED, with usage so far)."""

    code = Code.DEADLINE_EXCEEDED
    reason = "LIMIT_EXPIRED"


class SlowReader(ServeError):
    """The client does not read its stream (-> ABORTED)."""

    code = Code.ABORTED
    reason = "slow_reader"


class DuplicateKey(ServeError):
    """The idempotency key was already used within its window (-> ALREADY_EXISTS)."""

    code = Code.ALREADY_EXISTS
    reason = "DUPLICATE_IDEMPOTENCY_KEY"


class StaleAttempt(ServeError):
    """An old attempt, epoch, term or placement was presented (-> ABORTED)."""

    code = Code.ABORTED
    reason = "STALE_ATTEMPT"


class StaleChange(ServeError):
    """A change was made from a state that is not the newest any more (-> ABORTED)."""

    code = Code.ABORTED
    reason = "STALE_CHANGE"


class BadRow(ServeError):
    """The model produced NaN or infinite logits for this request (-> INTERNAL)."""

    code = Code.INTERNAL
    reason = "BAD_LOGITS"


def rebuild(code: Code, reason: str, message: str, detail: ErrorDetail) -> ServeError:
    """Return the typed error behind `reason`; an unknown one keeps its code and reason on the base type."""
    kinds = [ServeError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    known = next((kind for kind in kinds if kind.reason == reason and kind.code is code), ServeError)
    error = known.__new__(known)
    ServeError.__init__(error, message, detail)
    error.code, error.reason = code, reason
    return error
