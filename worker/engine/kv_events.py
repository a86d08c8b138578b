"""What the page pool tells about its published blocks.

Knows nothing of sequence numbers or of who listens: the sender numbers events in the order given here.
"""

from enum import StrEnum
from typing import NamedTuple

from services.domain.ids import BlockHash, TenantId


class RemovalReason(StrEnum):
    """Why a published block is gone."""

    SPACE = "space"
    """Its page was needed for other content."""
    IDLE = "idle"
    """Nobody has used it for the time that the policy gives."""
    UNTRUSTED = "untrusted"
    """The request that computed it turned out to give NaN."""


class Stored(NamedTuple):
    """A full block's KV is in a page that is full, and may be reused with it. A tuple: one for each block."""

    hash: BlockHash
    parent: BlockHash | None
    """The block before it; None for a first block."""
    tenant: TenantId
    """Whose request computed it."""
    depth: int
    """Index of the block in its sequence, from 0: it ends at token `(depth + 1) * BLOCK_SIZE`."""


class Removed(NamedTuple):
    """A published block can no longer be reused. A tuple: one for each block."""

    hash: BlockHash
    tenant: TenantId
    why: RemovalReason


KvEvent = Stored | Removed
