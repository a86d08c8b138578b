"""What an HTTP request shows of its caller: a key, a certificate, or that it is a program of this machine.

Knows headers, names and addresses; whether a key is valid is `core.auth`'s.
"""

import ipaddress
from collections.abc import Mapping
from typing import Any

from services.domain.errors import BadCredential

FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Set by proxies: whoever is behind one is not known to be here."""


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the key that was given, None if none was.

    Raises:
        BadCredential: Another scheme than Bearer.
    """
    given = headers.get("authorization")
    if given is None:
        return headers.get("x-api-key")
    scheme, _, key = given.partition(" ")
    if scheme.lower() != "bearer":
        raise BadCredential("authorization must be `Bearer KEY`")
    return key.strip()


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the common name and the alternative names of a certificate as `ssl` shows it."""
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    found = [value for name, value in subject if name == "commonName"]
    found += [value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
    return tuple(dict.fromkeys(found))


def is_local(peer: str, headers: Mapping[str, str]) -> bool:
    """Say whether a program of this machine calls on its own behalf.

    Not so behind a proxy, and not from a page in somebody's browser (it sends `origin`, or has our address
    under a name of its own).
    """
    if not _is_loopback(peer) or "origin" in headers:
        return False
    if any(name in headers for name in FORWARDED):
        return False
    host = headers.get("host", "")
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    return name == "localhost" or _is_loopback(name)


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
