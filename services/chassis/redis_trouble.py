"""Why a Redis cannot be used and what to do, in words for who runs it.

Knows errors only; whether to call again is not decided here, and nothing of an address is repeated.
"""

import ssl

import redis.exceptions

from services.domain.errors import DependencyDown

_NOT_LET_IN = (
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
    redis.exceptions.NoPermissionError,
)


def what_to_mend(error: DependencyDown) -> str:
    """Say why the Redis at REDIS_URL, just asked, cannot be used and what to do; no password is repeated."""
    cause = error.__cause__
    if (trouble := tls_trouble(error)) is not None:
        return trouble
    if isinstance(cause, redis.exceptions.InvalidResponse):
        return "answers, but not as Redis does: mend the address (rediss:// if it has TLS)"
    if isinstance(cause, _NOT_LET_IN):
        return f"refuses us ({_plain(cause)}): mend the name and password in the address"
    return f"does not answer ({_plain(cause or error)}): start it"


def tls_trouble(error: BaseException) -> str | None:
    """Say what is wrong between both ends' TLS and what to do, None where it is not that."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"shows a certificate that is not trusted ({cause.verify_message}): name its authority, "
            "`ca` of [tls] or ssl_ca_certs of the address"
        )
    if cause is not None:
        return f"has no TLS that we speak ({cause.reason}): mend the address (redis:// if it has none)"
    return None


def _plain(error: BaseException) -> str:
    return str(error).rstrip(".")
