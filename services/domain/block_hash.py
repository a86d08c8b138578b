"""Names blocks of tokens by content, so that gateway, kvmanager and worker agree without talking.

Knows nothing of pages or places. Changing any byte of the preimage needs a new `VERSION`.
"""

import hashlib
import struct
from collections.abc import Sequence

from services.domain.ids import BlockHash

BLOCK_SIZE = 16
"""Tokens in a block."""

VERSION = b"quire.block.v1"
DIGEST_BYTES = 16

_IDS = struct.Struct(f"<{BLOCK_SIZE}I")
_LENGTH = struct.Struct("<I")


def hash_block(
    previous: BlockHash | None, token_ids: Sequence[int], *, salt: bytes, adapter: bytes = b""
) -> BlockHash:
    """Return the name of a full block that follows `previous` (None for the first block).

    h = SHA-256(version, h_prev, salt, adapter, token ids), each part length-prefixed (u32, little endian),
    truncated to 16 bytes: 2^64 work for a collision, and the salt is secret to the server.

    Raises:
        ValueError: The block does not hold exactly `BLOCK_SIZE` ids.
    """
    if len(token_ids) != BLOCK_SIZE:
        raise ValueError(f"a block holds {BLOCK_SIZE} token ids, got {len(token_ids)}")
    parts = (VERSION, previous or b"", salt, adapter, _IDS.pack(*token_ids))
    preimage = b"".join([piece for part in parts for piece in (_LENGTH.pack(len(part)), part)])
    return BlockHash(hashlib.sha256(preimage).digest()[:DIGEST_BYTES])


def hash_blocks(
    token_ids: Sequence[int], *, salt: bytes, adapter: bytes = b"", previous: BlockHash | None = None
) -> list[BlockHash]:
    """Name every full block of `token_ids`, in order; an incomplete tail has no name.

    Worked number: 50 tokens give 3 hashes (48 tokens); the last 2 tokens give none.
    """
    hashes: list[BlockHash] = []
    for start in range(0, len(token_ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
        previous = hash_block(previous, token_ids[start : start + BLOCK_SIZE], salt=salt, adapter=adapter)
        hashes.append(previous)
    return hashes
