"""What the manager keeps of one boot of a worker: where its feed stands, when it was last heard.

Knows no index and no slices.
"""

from dataclasses import dataclass, field

from kvmanager.core.prefix_index import WorkerKey
from kvmanager.core.worker_feed import WorkerFeed
from kvmanager.messages import WorkerLink
from services.domain.ids import TenantId

DROP_AFTER_S = 3.0
"""Seconds of silence after which a worker without a stream is dropped; with the tick, inside 4 s."""


@dataclass(slots=True)
class KnownWorker:
    """One boot of a worker, as far as it is known."""

    key: WorkerKey
    feed: WorkerFeed
    last_seen: float
    in_sync_at: float
    """When all its changes were last known; at first, since when it is not."""
    drop_after_s: float = DROP_AFTER_S
    link: WorkerLink | None = None
    from_copy: bool = False
    policy_version: int = 0
    tenant_pages: dict[TenantId, int] = field(default_factory=dict)
