"""A gRPC channel whose new calls use the certificates as they are at that moment.

Knows connections; where certificates come from and what they are checked for is not known here.
"""

from collections.abc import Callable
from typing import Any

import grpc

from services.chassis.certificate import Identity
from services.chassis.grpc import create_channel

_OVERRIDE = "grpc.ssl_target_name_override"
_MAX_CHANNELS = 2


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """Return what a caller connects with."""
    return grpc.ssl_channel_credentials(identity.ca, *(identity.pair or ()))


class FollowingChannel:
    """See the module.

    A call that runs is left alone while its files are renewed once; with the next renewal it ends, and links
    attach again. Has the four kinds of call and `close`, which is all that stubs and links need.

    Args:
        identity: Gives the certificates as they are now; the same object while they are the same.
        name: That the peer's certificate must have; None: the target's.
    """

    def __init__(self, identity: Callable[[], Identity], target: str, name: str | None) -> None:
        self._current = identity
        self._target = target
        self._options = () if name is None else ((_OVERRIDE, name),)
        self._identity: Identity | None = None
        self._channels: list[grpc.aio.Channel] = []

    def unary_unary(self, *method: Any, **codecs: Any) -> Callable[..., Any]:
        return lambda *a, **k: self._newest().unary_unary(*method, **codecs)(*a, **k)

    def unary_stream(self, *method: Any, **codecs: Any) -> Callable[..., Any]:
        return lambda *a, **k: self._newest().unary_stream(*method, **codecs)(*a, **k)

    def stream_unary(self, *method: Any, **codecs: Any) -> Callable[..., Any]:
        return lambda *a, **k: self._newest().stream_unary(*method, **codecs)(*a, **k)

    def stream_stream(self, *method: Any, **codecs: Any) -> Callable[..., Any]:
        return lambda *a, **k: self._newest().stream_stream(*method, **codecs)(*a, **k)

    async def close(self, grace: float | None = None) -> None:
        """Close all connections; `grace` seconds for calls that run."""
        while self._channels:
            await self._channels.pop().close(grace)

    async def __aenter__(self) -> "FollowingChannel":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _newest(self) -> grpc.aio.Channel:
        identity = self._current()
        if identity is not self._identity:
            self._identity = identity
            self._channels.append(
                create_channel(self._target, credentials=channel_credentials(identity), options=self._options)
            )
            # A channel that nobody refers to closes itself.
            del self._channels[:-_MAX_CHANNELS]
        return self._channels[-1]
