"""What the page pool tells about its published blocks.

Knows nothing of sequence numbers or of who listens: the sender numbers events in the order given here.
"""

from dataclasses import dataclass
from enum import StrEnum

from services.domain.ids import BlockHash, TenantId


class RemovalReason(StrEnum):
    """Why a published block is gone."""

    SPACE = "space"
    """Its page was needed for other content."""
    IDLE = "idle"
    """Nobody has used it for the time that the policy gives."""
    UNTRUSTED = "untrusted"
    """The request that computed it turned out to give NaN."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A full block's KV is in a page that is full, and may be reused with it."""

    hash: BlockHash
    parent: BlockHash | None
    """The block before it; None for a first block."""
    tenant: TenantId
    """Whose request computed it."""
    depth: int
    """Index of the block in its sequence, from 0: it ends at token `(depth + 1) * BLOCK_SIZE`."""


@dataclass(frozen=True, slots=True)
class Removed:
    """A published block can no longer be reused."""

    hash: BlockHash
    tenant: TenantId
    why: RemovalReason


KvEvent = Stored | Removed
