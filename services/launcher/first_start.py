"""`quire first-start`: give a fresh deployment its server key and one tenant's key, once.

Knows how a first configuration file looks. Does not know any later life of tenants: a file that is there is
never touched.
"""

import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.core.keys import KEY_BYTES, digest_key, make_key
from services.chassis.config import load
from services.chassis.fatal import FatalError

SECRET_BYTES = 32
"""Random bytes of each of the server's own secrets."""
FIRST_TENANT = "main"
_EXAMPLES = """examples:
  quire first-start --out /config/quire.toml
"""
_FILE = """\
# Written on the first start; every line may be changed, then restart the gateway and the kvmanager.

[gateway]
# Keys and cache salts are derived under it: another one makes every key_hmac below worthless.
server_key = "{server_key}"
# Opens the admin door (port 50054), for `quire tenant`.
admin_key = "{admin_key}"

[[tenants]]
id = "{tenant}"
# HMAC-SHA256 of the key under server_key; the key itself is nowhere.
key_hmac = "{key_hmac}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStartConfig:
    """Write a configuration file with generated keys, unless it is there; show the tenant's key once."""

    out: Path
    """The file to write; only its owner can read it."""


@dataclass(frozen=True, slots=True)
class FirstConfig:
    """A new configuration file's text and the one key that opens it."""

    text: str
    key: str


def main(argv: Sequence[str]) -> int:
    """Write the file if there is none; return the exit code.

    Raises:
        FatalError: The file cannot be written.
    """
    config = load(FirstStartConfig, "first_start", argv=argv, prog="quire first-start", examples=_EXAMPLES)
    first = make(FIRST_TENANT)
    try:
        written = write_once(config.out, first.text)
    except OSError as exc:
        raise FatalError(
            f"{config.out} cannot be written ({exc.strerror}): user {os.getuid()} needs its folder"
        ) from exc
    if not written:
        print(f"{config.out} is there already; its keys stay as they are", flush=True)
        return 0
    print(f"wrote {config.out}", flush=True)
    print(f"key of tenant {FIRST_TENANT}, shown only now: {first.key}", flush=True)
    return 0


def make(tenant: str) -> FirstConfig:
    """Draw both keys and return the file that holds the one and a digest of the other."""
    server_key = secrets.token_hex(SECRET_BYTES)
    key, _ = make_key(secrets.token_bytes(KEY_BYTES))
    text = _FILE.format(
        server_key=server_key,
        admin_key=secrets.token_urlsafe(SECRET_BYTES),
        tenant=tenant,
        key_hmac=digest_key(server_key.encode(), key),
    )
    return FirstConfig(text, key)


def write_once(out: Path, text: str) -> bool:
    """Write `text` whole or not at all, for its owner alone; False where `out` exists.

    Raises:
        OSError: The folder cannot be written.
    """
    # mkstemp makes it 0600; the link fails where one is there already, also one made a moment ago.
    descriptor, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(name, out)
    except FileExistsError:
        return False
    finally:
        os.unlink(name)
    return True
