"""What a gRPC call shows of its caller: a key, a certificate, or that it is a program of this machine.

Knows metadata and names of peers; whether a key is valid is `core.auth`'s.
"""

import ipaddress

import grpc

from gateway.core.auth import Authenticator
from gateway.core.request import Caller
from gateway.http.credentials import FORWARDED
from services.chassis.tls import names_of
from services.domain.errors import BadCredential


def caller_of(auth: Authenticator, context: grpc.aio.ServicerContext) -> Caller:
    """Return who calls, whatever for.

    Raises:
        BadCredential: Nothing that was shown says so.
    """
    return auth.identify(key_of(context), from_loopback=is_local(context), certificate=names_of(context))


def key_of(context: grpc.aio.ServicerContext) -> str | None:
    """Return the key that was given, None if none was.

    Raises:
        BadCredential: Another scheme than Bearer.
    """
    given = metadata(context, "authorization")
    if given is None:
        return metadata(context, "x-api-key")
    scheme, _, key = given.partition(" ")
    if scheme.lower() != "bearer":
        raise BadCredential("authorization must be `Bearer KEY`")
    return key.strip()


def is_local(context: grpc.aio.ServicerContext) -> bool:
    """Say whether a program of this machine calls on its own behalf."""
    # Behind a proxy on this machine everybody comes from loopback.
    is_forwarded = any(metadata(context, name) is not None for name in FORWARDED)
    return is_loopback(context.peer()) and not is_forwarded


def is_loopback(peer: str) -> bool:
    """Say whether gRPC's name of a peer (`ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000`) is this machine."""
    kind, _, address = peer.partition(":")
    if kind == "unix":
        return True
    host = address.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def metadata(context: grpc.aio.ServicerContext, name: str) -> str | None:
    """Return the first value of one piece of metadata."""
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return str(value)
    return None
