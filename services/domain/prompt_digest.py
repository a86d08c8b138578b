"""Names a prompt, so that processes can speak of it without having it.

Keyed by a salt that only the server knows: nobody can tell a prompt from its name, nor see that another
tenant has the same one. Knows nothing of blocks: `block_hash` names those, under salts that callers may vary.
"""

import hashlib
from array import array
from collections.abc import Sequence

VERSION = b"quire.prompt.v1"
DIGEST_BYTES = 16


def digest_prompt(token_ids: Sequence[int], *, salt: bytes, model: str) -> bytes:
    """Return 16 bytes that name the prompt of the salt's tenant to `model`."""
    name = model.encode()
    head = b"".join(len(part).to_bytes(4, "little") + part for part in (VERSION, salt, name))
    return hashlib.sha256(head + array("I", token_ids).tobytes()).digest()[:DIGEST_BYTES]
