"""What the manager is told and asked, and what it answers.

Plain values between the gRPC adapter and the manager; knows neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvmanager.core.eviction_policy import EvictionPolicy
from kvmanager.core.prefix_index import PrefixMatch, WorkerKey
from services.domain.ids import BlockHash, TenantId
from services.domain.miss_reason import MissReason


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChange:
    """One numbered message of changes; `removed` happened before `stored`."""

    seq: int
    stored: Sequence[BlockHash] = ()
    removed: Sequence[BlockHash] = ()
    removal_reason: MissReason = MissReason.EVICTED_FOR_SPACE
    tenant_pages: Mapping[TenantId, int]
    """Pages that tenants hold now, where it changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """A part of everything that a worker holds."""

    seq: int
    """Changes up to this number are in it."""
    blocks: Sequence[BlockHash]
    first: bool
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A prompt to look up."""

    hashes: Sequence[BlockHash]
    tenant: TenantId
    own_salt: bool = False
    namespace: str | None = None
    """None: all namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Where a prompt's blocks are cached, and why not more of them."""

    matches: Sequence[PrefixMatch]
    miss_reason: MissReason
    """Of the best match."""
    num_cached: int
    """Blocks that the best worker has."""
    index_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """What is known of one worker."""

    key: WorkerKey
    num_blocks: int
    seq: int
    from_copy: bool
    """Known from the copy only; no snapshot yet."""
    silent_s: float
    """Seconds since its last message."""
    tenant_pages: Mapping[TenantId, int]
    policy_version: int
    """Of the policy it follows; 0 when it has not said so."""


class WorkerLink(Protocol):
    """The way to one worker. Nothing here waits or fails; a broken link ends by itself."""

    def push_slices(
        self, version: int, max_pages: Mapping[TenantId, int], caps: Mapping[TenantId, int]
    ) -> None: ...

    def push_policy(self, policy: EvictionPolicy) -> None: ...

    def ask_snapshot(self) -> None: ...

    def close(self) -> None:
        """End the stream: another one took its place."""
