"""API keys: how one looks, what is kept of it, and whether it opens anything now.

A key is `quire_<id>_<secret>`: the id is public and finds the record, the secret has 256 random bits and only
its HMAC-SHA256 under the server's key is kept. Draws no randomness itself and reads no clock.
"""

import base64
import dataclasses
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from services.domain.document_values import a_name, a_number, a_table, a_text, many_of, nearest_name, refused
from services.domain.ids import TenantId
from services.domain.limits import Limits
from services.domain.tenant_document import limits_to_document, read_limits

ID_CHARS = 12
ID_BYTES = 8
SECRET_BYTES = 32
KEY_BYTES = ID_BYTES + SECRET_BYTES
"""Random bytes that `make_key` needs."""
SHORT_ID_CHARS = 8
"""Of the digest: names a key whose form is not ours (from a configuration file)."""

_FORM = re.compile(rf"quire_([a-z2-7]{{{ID_CHARS}}})_[A-Za-z0-9_-]{{43}}")


class KeyScope(StrEnum):
    """What a key may be used for."""

    GENERATE = "generate"
    """Generations, tokens, models, and what became of the tenant's requests."""
    USAGE = "usage"
    """Read what its own tenant used."""
    ADMIN = "admin"
    """Everything in the AdminService, for all tenants."""


USUAL_SCOPES = frozenset({KeyScope.GENERATE, KeyScope.USAGE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is kept of a key."""

    id: str
    tenant: TenantId
    digest: str
    """See `digest_key`."""
    scopes: frozenset[KeyScope] = USUAL_SCOPES
    label: str = ""
    """For people."""
    limits: Limits = field(default_factory=Limits)
    """Of this key alone, beside the tenant's."""
    created_at: float = 0.0
    """Seconds since 1970."""
    expires_at: float | None = None
    """Seconds since 1970 from which it opens nothing."""

    def is_valid(self, now: float) -> bool:
        return self.expires_at is None or now < self.expires_at


def make_key(random: bytes) -> tuple[str, str]:
    """Return a new key and its id.

    Args:
        random: `KEY_BYTES` from a cryptographic source.
    """
    assert len(random) == KEY_BYTES
    key_id = base64.b32encode(random[:ID_BYTES]).decode().lower()[:ID_CHARS]
    secret = base64.urlsafe_b64encode(random[ID_BYTES:]).decode().rstrip("=")
    return f"quire_{key_id}_{secret}", key_id


def digest_key(server_key: bytes, key: str) -> str:
    """Return what is stored of a key: HMAC-SHA256 under the server's key, in hex."""
    return hmac.digest(server_key, key.encode(), hashlib.sha256).hex()


def short_id(digest: str) -> str:
    """Return the id of a key that is not of our form."""
    return digest[:SHORT_ID_CHARS]


def find_key(keys: Mapping[str, ApiKey], server_key: bytes, key: str) -> ApiKey | None:
    """Return the record of a key, whether it is still valid or not.

    Takes a look-up by public id and one comparison in constant time, as many with an unknown id.
    """
    digest = digest_key(server_key, key)
    form = _FORM.fullmatch(key)
    found = (keys.get(form[1]) if form else None) or keys.get(short_id(digest))
    known = found.digest if found else "0" * len(digest)
    return found if hmac.compare_digest(known, digest) else None


def _scope(where: str, value: object) -> KeyScope:
    if isinstance(value, str) and value in list(KeyScope):
        return KeyScope(value)
    nearest = nearest_name(value, list(KeyScope)) if isinstance(value, str) else None
    raise refused(where, "one of " + ", ".join(KeyScope), value, nearest)


def _scopes(where: str, value: object) -> frozenset[KeyScope]:
    return frozenset(many_of(_scope, least=1)(where, value))


MAX_TIME = 253_402_300_799.0
"""The last second of the year 9999."""
key_from_document = a_table(
    ApiKey,
    {
        "id": a_name,
        "tenant": a_name,
        "digest": a_text(64, least=64),
        "scopes": _scopes,
        "label": a_text(128),
        "limits": read_limits,
        "created_at": a_number(0, MAX_TIME),
        "expires_at": a_number(0, MAX_TIME),
    },
    required=("id", "tenant", "digest"),
)
"""(where, document) -> ApiKey; refuses as a tenant's document does."""


def key_to_document(key: ApiKey) -> dict[str, Any]:
    """Write a key's record; `key_from_document` reads it back."""
    document = {one.name: getattr(key, one.name) for one in dataclasses.fields(key)}
    document["scopes"] = sorted(key.scopes)
    document["limits"] = limits_to_document(key.limits)
    return {name: value for name, value in document.items() if value not in (None, "", {})}
