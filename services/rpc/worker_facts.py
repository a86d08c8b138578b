"""What a worker tells about itself to scheduler and kvmanager when it says hello.

Knows nothing of load or of what the pool holds.
"""

from dataclasses import dataclass

from protos.types.v1 import types_pb2
from services.domain.capacity import Capacity
from services.domain.ids import Epoch, Namespace, WorkerId
from services.rpc.convert import peer_to_pb


@dataclass(slots=True, kw_only=True)
class WorkerFacts:
    """Fixed for one boot; only the epoch changes when a stopped process wakes up."""

    name: WorkerId
    epoch: Epoch
    build: str
    address: str
    """Where gateways reach it, host:port."""
    model: str
    revision: str
    namespace: Namespace
    numerics: str
    capacity: Capacity
    max_step_tokens: int
    max_prefill_tokens: int
    """Of those, a prompt's while others decode."""

    def peer(self) -> types_pb2.Peer:
        return peer_to_pb(self.name, self.epoch, self.build)
