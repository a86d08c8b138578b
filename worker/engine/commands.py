"""What the outside may ask of the engine: plain values, put into the step loop's queue from any thread.

Knows nothing of gateways, streams or protobuf: whoever posts a command maps connections to `handle`s,
which are unique inside this process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from services.domain.generation import Band, FinishReason, Limits, SamplingParams, StopParams
from services.domain.ids import BlockHash, RequestKey, TenantId
from worker.engine.kv_events import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Start a request, or attach to it.

    The same key attaches: `handle` replaces the old one and every token past `output_ids` is given again.
    A higher attempt of the same request id ends the older one; a lower attempt is refused.
    """

    handle: int
    key: RequestKey
    tenant: TenantId
    band: Band
    prompt_ids: Sequence[int]
    num_choices: int = 1
    output_ids: tuple[Sequence[int], ...] = ()
    """Per choice, ids that an earlier attempt has already given; empty when there are none."""
    finished: Mapping[int, FinishReason] | None = None
    """Choices that an earlier attempt has already finished; they are not run again."""
    block_hashes: Sequence[BlockHash] = ()
    """Names of the prompt's full blocks, in order; missing ones at the end are computed from `salt`."""
    salt: bytes = b""
    """Salt of blocks whose hash was not given: the prompt's tail and the output."""
    adapter: bytes = b""
    sampling: SamplingParams
    stop: StopParams
    limits: Limits
    """Seconds from the moment the engine takes the command."""
    cache_opt_out: bool = False
    """Neither read nor publish cached KV."""
    num_prompt_logprobs: int | None = None
    """None: the prompt is not scored. Otherwise so many alternatives of each of its tokens, 0 for none."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the request without further output; unknown handles are counted and ignored."""

    handle: int


@dataclass(frozen=True, slots=True)
class FinishChoice:
    """End one choice: the gateway found a stop string or a spent budget."""

    handle: int
    choice: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class SetSlices:
    """Replace the tenants' slices: most pages each may hold here."""

    max_pages: Mapping[TenantId, int]
    default_max: int | None = None
    """For tenants not named; None is the whole pool."""
    version: int = 0
    """Grows with each; said back when they are applied."""
    caps: Mapping[TenantId, int] = field(default_factory=dict)
    """Most pages over all workers: who needs more is refused, who needs less waits for its slice."""


@dataclass(frozen=True, slots=True)
class SetIdleTtl:
    """Give up cached pages that nobody has used for so long."""

    idle_ttl_s: float | None
    """None: only when a page is needed."""


@dataclass(frozen=True, slots=True)
class SetRanks:
    """Replace the tenants' over-share (> 0 is over its fair share); decides victims inside a band."""

    over_share: Mapping[TenantId, float]


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new requests from now on; what is live finishes."""


@dataclass(frozen=True, slots=True)
class SnapshotKv:
    """Ask for every published block.

    `reply` is called in the loop's thread between two steps: it must only hand over. All events of earlier
    steps have been given to `on_step` before, so the snapshot replaces everything told until then.
    """

    reply: Callable[[tuple[Stored, ...]], None]


Command = Submit | Cancel | FinishChoice | SetSlices | SetIdleTtl | SetRanks | Drain | SnapshotKv
