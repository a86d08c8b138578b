"""Errors that arise on the client's own side of the wire.

Everything that a server says arrives as the typed errors of `services.domain.errors`.
"""

from services.domain.errors import Code, ServeError


class IncompleteStream(ServeError):
    """The stream ended, or was cancelled here, before its receipt: the answer is not whole."""

    code = Code.UNAVAILABLE
    reason = "INCOMPLETE_STREAM"
