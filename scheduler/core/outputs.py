"""What the core wants done: messages to gateways and workers, questions to the kvmanager.

What is made at each decision is a named tuple: as immutable as a frozen dataclass, and made in a third of the
time. Knows no stream and no wire format.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.core.degrade import TenantStep
from scheduler.core.request import Acquire
from services.domain.degradation import Step
from services.domain.errors import ServeError
from services.domain.generation import Band
from services.domain.ids import Epoch, GatewayId, Namespace, RequestKey, TenantId, WorkerId
from services.domain.miss_reason import MissReason


class Queued(NamedTuple):
    """The request waits; sent again when its position changed notably."""

    gateway: GatewayId
    key: RequestKey
    position: int
    expected_wait_s: float | None


class Placed(NamedTuple):
    """The gateway may submit the request to this worker."""

    gateway: GatewayId
    acquire: Acquire
    worker: WorkerId
    epoch: Epoch
    address: str
    seq: int
    submit_within_s: float
    cached_tokens: int
    miss_reason: MissReason
    first_miss_token: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The request will not be placed."""

    gateway: GatewayId
    acquire: Acquire
    error: ServeError
    waited_s: float


class PlacementsMade(NamedTuple):
    """Which placements exist on a worker, and which of them will never be submitted."""

    worker: WorkerId
    highest_seq: int
    abandoned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How far the tenants with requests on a worker are over their share; it chooses victims by that."""

    worker: WorkerId
    version: int
    over_share: Mapping[TenantId, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskMatch:
    """The kvmanager should say where this prompt is cached."""

    acquire: Acquire
    namespace: Namespace | None
    """None when the model's workers do not share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """What can be called, and the most that one request may need."""

    name: str
    revision: str
    max_context_tokens: int
    num_workers: int
    max_pages: int
    page_size: int
    max_sequences: int
    steps: Mapping[Band, Step] = field(default_factory=dict)
    """How far its bands have climbed the ladder of degradation; absent: not at all."""
    batch_wait_s: float = 0.0
    """How long arrivals of bands that have not degraded are gathered."""


@dataclass(frozen=True, slots=True)
class ModelsChanged:
    """Every gateway should know these models."""

    models: tuple[ModelState, ...]


class TenantStepsChanged(NamedTuple):
    """Every gateway should know that these tenants stand on these steps now."""

    steps: tuple[TenantStep, ...]


ToAllGateways = ModelsChanged | TenantStepsChanged
Output = Queued | Placed | Rejected | PlacementsMade | Ranks | AskMatch | ToAllGateways
