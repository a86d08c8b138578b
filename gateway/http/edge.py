"""Around every route: nobody gets past without a caller's name, and every failure becomes an answer.

Knows no route, only which paths another scope of key opens: one that is added later is guarded like the
others, and so are those that do not exist.
"""

from collections.abc import Awaitable, Callable, Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.core.auth import Authenticator
from gateway.core.keys import KeyScope
from gateway.core.request import Caller
from gateway.http.credentials import is_local, key_of
from gateway.http.errors import internal_error, response_of
from gateway.http.owner import ClientGone
from gateway.http.server import CERTIFICATE
from gateway.limit_lookup import NOTHING, Subject
from services.domain.errors import ServeError

CALLER = "quire.caller"
"""Key in the scope under which routes find who calls."""
TOLD = "quire.told"
"""Key in the scope that a route sets where its answer itself tells how the caller stands at its limits."""
ABOUT = "quire.about"
"""Key in the scope that a route sets once it knows which model an answer is about."""
_RATE = b"x-ratelimit-"


class Edge:
    """The outermost part of the application.

    Args:
        scopes: Path -> what a key must be for, where that is not to generate.
        limit_headers_of: Returns the headers that tell how a caller stands at its limits.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        scopes: Mapping[str, KeyScope],
        limit_headers_of: Callable[[Caller, Subject], Awaitable[Mapping[str, str]]],
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._scopes = scopes
        self._limit_headers_of = limit_headers_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # Nothing else is served; what is not answered is refused.
        has_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                await self._tell(scope, message)
            has_begun = True
            await send(message)

        try:
            headers = Headers(scope=scope)
            peer = scope["client"][0] if scope.get("client") else ""
            caller = scope[CALLER] = self._authenticator.identify(
                key_of(headers),
                from_loopback=is_local(peer, headers),
                certificate=scope.get(CERTIFICATE, ()),
            )
            self._authenticator.require(caller, self._scopes.get(scope["path"], KeyScope.GENERATE))
            await self._app(scope, receive, watched_send)
        except ClientGone:
            return
        except Exception as error:
            if has_begun:
                raise
            told = error if isinstance(error, ServeError) else internal_error(error)
            await response_of(told)(scope, receive, watched_send)

    async def _tell(self, scope: Scope, message: Message) -> None:
        """Add how the caller stands to the head of an answer that does not say so itself."""
        caller = scope.get(CALLER)
        if caller is None or scope.get(TOLD) or any(name.startswith(_RATE) for name, _ in message["headers"]):
            return
        told = await self._limit_headers_of(caller, scope.get(ABOUT, NOTHING))
        message["headers"] = [
            *message["headers"],
            *((name.encode(), value.encode()) for name, value in told.items()),
        ]
