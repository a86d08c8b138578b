"""Around every route: nobody gets past without a caller's name, and every failure becomes an answer.

Knows no route, only which paths another scope of key opens: one that is added later is guarded like the
others, and so are those that do not exist.
"""

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.core.auth import Authenticator
from gateway.core.keys import KeyScope
from gateway.http.credentials import is_local, key_of
from gateway.http.errors import internal_error, response_of
from gateway.http.owner import ClientGone
from gateway.http.server import CERTIFICATE
from services.domain.errors import ServeError

CALLER = "quire.caller"
"""Key in the scope under which routes find who calls."""


class Edge:
    """The outermost part of the application.

    Args:
        scopes: Path -> what a key must be for, where that is not to generate.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator, scopes: Mapping[str, KeyScope]) -> None:
        self._app = app
        self._authenticator = authenticator
        self._scopes = scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # Nothing else is served; what is not answered is refused.
        has_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            headers = Headers(scope=scope)
            peer = scope["client"][0] if scope.get("client") else ""
            scope[CALLER] = self._authenticator.authenticate(
                key_of(headers),
                from_loopback=is_local(peer, headers),
                certificate=scope.get(CERTIFICATE, ()),
                scope=self._scopes.get(scope["path"], KeyScope.GENERATE),
            )
            await self._app(scope, receive, watched_send)
        except ClientGone:
            return
        except Exception as error:
            if has_begun:
                raise
            told = error if isinstance(error, ServeError) else internal_error(error)
            await response_of(told)(scope, receive, send)
