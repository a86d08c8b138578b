from protos.types.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Breaker(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BREAKER_UNSPECIFIED: _ClassVar[Breaker]
    BREAKER_CLOSED: _ClassVar[Breaker]
    BREAKER_OPEN: _ClassVar[Breaker]
    BREAKER_HALF_OPEN: _ClassVar[Breaker]
BREAKER_UNSPECIFIED: Breaker
BREAKER_CLOSED: Breaker
BREAKER_OPEN: Breaker
BREAKER_HALF_OPEN: Breaker

class ConnectGatewayRequest(_message.Message):
    __slots__ = ("hello", "acquire", "abandon", "heartbeat", "terms", "several")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    SEVERAL_FIELD_NUMBER: _ClassVar[int]
    hello: GatewayHello
    acquire: Acquire
    abandon: Abandon
    heartbeat: _types_pb2.Heartbeat
    terms: Terms
    several: _containers.RepeatedCompositeFieldContainer[ConnectGatewayRequest]
    def __init__(self, hello: _Optional[_Union[GatewayHello, _Mapping]] = ..., acquire: _Optional[_Union[Acquire, _Mapping]] = ..., abandon: _Optional[_Union[Abandon, _Mapping]] = ..., heartbeat: _Optional[_Union[_types_pb2.Heartbeat, _Mapping]] = ..., terms: _Optional[_Union[Terms, _Mapping]] = ..., several: _Optional[_Iterable[_Union[ConnectGatewayRequest, _Mapping]]] = ...) -> None: ...

class GatewayHello(_message.Message):
    __slots__ = ("peer", "waiting")
    PEER_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    peer: _types_pb2.Peer
    waiting: _containers.RepeatedCompositeFieldContainer[Acquire]
    def __init__(self, peer: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ..., waiting: _Optional[_Iterable[_Union[Acquire, _Mapping]]] = ...) -> None: ...

class Acquire(_message.Message):
    __slots__ = ("key", "tenant", "band", "request_class", "model", "num_prompt_tokens", "max_output_tokens", "n", "block_hashes", "limits", "waited_ms", "avoid", "own_salt", "cache_opt_out", "traceparent", "weight", "prompt_digest", "avoid_epochs", "budget_step")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BAND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    AVOID_FIELD_NUMBER: _ClassVar[int]
    OWN_SALT_FIELD_NUMBER: _ClassVar[int]
    CACHE_OPT_OUT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    AVOID_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_STEP_FIELD_NUMBER: _ClassVar[int]
    key: _types_pb2.RequestKey
    tenant: str
    band: _types_pb2.Band
    request_class: _types_pb2.RequestClass
    model: str
    num_prompt_tokens: int
    max_output_tokens: int
    n: int
    block_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    limits: _types_pb2.Limits
    waited_ms: int
    avoid: _containers.RepeatedScalarFieldContainer[str]
    own_salt: bool
    cache_opt_out: bool
    traceparent: str
    weight: float
    prompt_digest: bytes
    avoid_epochs: _containers.RepeatedScalarFieldContainer[int]
    budget_step: _types_pb2.DegradationStep
    def __init__(self, key: _Optional[_Union[_types_pb2.RequestKey, _Mapping]] = ..., tenant: _Optional[str] = ..., band: _Optional[_Union[_types_pb2.Band, str]] = ..., request_class: _Optional[_Union[_types_pb2.RequestClass, str]] = ..., model: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., n: _Optional[int] = ..., block_hashes: _Optional[_Iterable[bytes]] = ..., limits: _Optional[_Union[_types_pb2.Limits, _Mapping]] = ..., waited_ms: _Optional[int] = ..., avoid: _Optional[_Iterable[str]] = ..., own_salt: _Optional[bool] = ..., cache_opt_out: _Optional[bool] = ..., traceparent: _Optional[str] = ..., weight: _Optional[float] = ..., prompt_digest: _Optional[bytes] = ..., avoid_epochs: _Optional[_Iterable[int]] = ..., budget_step: _Optional[_Union[_types_pb2.DegradationStep, str]] = ...) -> None: ...

class Abandon(_message.Message):
    __slots__ = ("key", "seq")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    key: _types_pb2.RequestKey
    seq: int
    def __init__(self, key: _Optional[_Union[_types_pb2.RequestKey, _Mapping]] = ..., seq: _Optional[int] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("weights", "requeued")
    class WeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    REQUEUED_FIELD_NUMBER: _ClassVar[int]
    weights: _containers.ScalarMap[str, float]
    requeued: _containers.RepeatedCompositeFieldContainer[Requeue]
    def __init__(self, weights: _Optional[_Mapping[str, float]] = ..., requeued: _Optional[_Iterable[_Union[Requeue, _Mapping]]] = ...) -> None: ...

class Requeue(_message.Message):
    __slots__ = ("keys", "band", "request_class")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BAND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[_types_pb2.RequestKey]
    band: _types_pb2.Band
    request_class: _types_pb2.RequestClass
    def __init__(self, keys: _Optional[_Iterable[_Union[_types_pb2.RequestKey, _Mapping]]] = ..., band: _Optional[_Union[_types_pb2.Band, str]] = ..., request_class: _Optional[_Union[_types_pb2.RequestClass, str]] = ...) -> None: ...

class ConnectGatewayResponse(_message.Message):
    __slots__ = ("welcome", "queued", "placement", "rejected", "models", "heartbeat", "tenant_steps", "several")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TENANT_STEPS_FIELD_NUMBER: _ClassVar[int]
    SEVERAL_FIELD_NUMBER: _ClassVar[int]
    welcome: GatewayWelcome
    queued: Queued
    placement: Placement
    rejected: Rejected
    models: Models
    heartbeat: _types_pb2.Heartbeat
    tenant_steps: TenantSteps
    several: _containers.RepeatedCompositeFieldContainer[ConnectGatewayResponse]
    def __init__(self, welcome: _Optional[_Union[GatewayWelcome, _Mapping]] = ..., queued: _Optional[_Union[Queued, _Mapping]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., models: _Optional[_Union[Models, _Mapping]] = ..., heartbeat: _Optional[_Union[_types_pb2.Heartbeat, _Mapping]] = ..., tenant_steps: _Optional[_Union[TenantSteps, _Mapping]] = ..., several: _Optional[_Iterable[_Union[ConnectGatewayResponse, _Mapping]]] = ...) -> None: ...

class GatewayWelcome(_message.Message):
    __slots__ = ("peer", "term", "bands")
    PEER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    BANDS_FIELD_NUMBER: _ClassVar[int]
    peer: _types_pb2.Peer
    term: int
    bands: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, peer: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ..., term: _Optional[int] = ..., bands: _Optional[_Iterable[str]] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("key", "position", "expected_wait_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    key: _types_pb2.RequestKey
    position: int
    expected_wait_ms: int
    def __init__(self, key: _Optional[_Union[_types_pb2.RequestKey, _Mapping]] = ..., position: _Optional[int] = ..., expected_wait_ms: _Optional[int] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("key", "worker", "epoch", "address", "term", "seq", "submit_within_ms", "cached_tokens", "miss_reason", "first_miss_token")
    KEY_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISS_REASON_FIELD_NUMBER: _ClassVar[int]
    FIRST_MISS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    key: _types_pb2.RequestKey
    worker: str
    epoch: int
    address: str
    term: int
    seq: int
    submit_within_ms: int
    cached_tokens: int
    miss_reason: _types_pb2.MissReason
    first_miss_token: int
    def __init__(self, key: _Optional[_Union[_types_pb2.RequestKey, _Mapping]] = ..., worker: _Optional[str] = ..., epoch: _Optional[int] = ..., address: _Optional[str] = ..., term: _Optional[int] = ..., seq: _Optional[int] = ..., submit_within_ms: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., miss_reason: _Optional[_Union[_types_pb2.MissReason, str]] = ..., first_miss_token: _Optional[int] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("key", "failure")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    key: _types_pb2.RequestKey
    failure: _types_pb2.Failure
    def __init__(self, key: _Optional[_Union[_types_pb2.RequestKey, _Mapping]] = ..., failure: _Optional[_Union[_types_pb2.Failure, _Mapping]] = ...) -> None: ...

class Models(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ...) -> None: ...

class TenantSteps(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[TenantStep]
    def __init__(self, steps: _Optional[_Iterable[_Union[TenantStep, _Mapping]]] = ...) -> None: ...

class TenantStep(_message.Message):
    __slots__ = ("model", "band", "tenant", "step")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BAND_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    model: str
    band: _types_pb2.Band
    tenant: str
    step: _types_pb2.DegradationStep
    def __init__(self, model: _Optional[str] = ..., band: _Optional[_Union[_types_pb2.Band, str]] = ..., tenant: _Optional[str] = ..., step: _Optional[_Union[_types_pb2.DegradationStep, str]] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("name", "revision", "max_context_tokens", "num_workers", "max_pages", "page_size", "max_sequences", "steps", "batch_wait_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: str
    max_context_tokens: int
    num_workers: int
    max_pages: int
    page_size: int
    max_sequences: int
    steps: _containers.RepeatedCompositeFieldContainer[BandStep]
    batch_wait_ms: int
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[str] = ..., max_context_tokens: _Optional[int] = ..., num_workers: _Optional[int] = ..., max_pages: _Optional[int] = ..., page_size: _Optional[int] = ..., max_sequences: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[BandStep, _Mapping]]] = ..., batch_wait_ms: _Optional[int] = ...) -> None: ...

class BandStep(_message.Message):
    __slots__ = ("band", "step")
    BAND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    band: _types_pb2.Band
    step: _types_pb2.DegradationStep
    def __init__(self, band: _Optional[_Union[_types_pb2.Band, str]] = ..., step: _Optional[_Union[_types_pb2.DegradationStep, str]] = ...) -> None: ...

class ConnectWorkerRequest(_message.Message):
    __slots__ = ("hello", "report", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    report: Report
    heartbeat: _types_pb2.Heartbeat
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., heartbeat: _Optional[_Union[_types_pb2.Heartbeat, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("peer", "address", "model", "revision", "namespace", "numerics", "max_context_tokens", "total_pages", "page_size", "max_sequences", "max_step_tokens", "live", "draining", "max_prefill_tokens")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    MAX_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    peer: _types_pb2.Peer
    address: str
    model: str
    revision: str
    namespace: str
    numerics: str
    max_context_tokens: int
    total_pages: int
    page_size: int
    max_sequences: int
    max_step_tokens: int
    live: _containers.RepeatedCompositeFieldContainer[_types_pb2.RequestKey]
    draining: bool
    max_prefill_tokens: int
    def __init__(self, peer: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ..., address: _Optional[str] = ..., model: _Optional[str] = ..., revision: _Optional[str] = ..., namespace: _Optional[str] = ..., numerics: _Optional[str] = ..., max_context_tokens: _Optional[int] = ..., total_pages: _Optional[int] = ..., page_size: _Optional[int] = ..., max_sequences: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., live: _Optional[_Iterable[_Union[_types_pb2.RequestKey, _Mapping]]] = ..., draining: _Optional[bool] = ..., max_prefill_tokens: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("seq", "placements_seen", "granted", "startable_pages", "free_pages", "reclaimable_pages", "waiting_tokens", "running", "waiting", "started", "ended", "tenant_use", "draining", "steps", "prefill_tokens_per_s", "at_slice", "stuck_ms")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_SEEN_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    STARTABLE_PAGES_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    RECLAIMABLE_PAGES_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    TENANT_USE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    AT_SLICE_FIELD_NUMBER: _ClassVar[int]
    STUCK_MS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    placements_seen: int
    granted: int
    startable_pages: int
    free_pages: int
    reclaimable_pages: int
    waiting_tokens: int
    running: int
    waiting: int
    started: _containers.RepeatedCompositeFieldContainer[_types_pb2.RequestKey]
    ended: _containers.RepeatedCompositeFieldContainer[EndedRequest]
    tenant_use: _containers.RepeatedCompositeFieldContainer[TenantUse]
    draining: bool
    steps: int
    prefill_tokens_per_s: float
    at_slice: _containers.RepeatedScalarFieldContainer[str]
    stuck_ms: int
    def __init__(self, seq: _Optional[int] = ..., placements_seen: _Optional[int] = ..., granted: _Optional[int] = ..., startable_pages: _Optional[int] = ..., free_pages: _Optional[int] = ..., reclaimable_pages: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., started: _Optional[_Iterable[_Union[_types_pb2.RequestKey, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[EndedRequest, _Mapping]]] = ..., tenant_use: _Optional[_Iterable[_Union[TenantUse, _Mapping]]] = ..., draining: _Optional[bool] = ..., steps: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., at_slice: _Optional[_Iterable[str]] = ..., stuck_ms: _Optional[int] = ...) -> None: ...

class EndedRequest(_message.Message):
    __slots__ = ("key", "code", "uncached_tokens", "cached_tokens")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    key: _types_pb2.RequestKey
    code: int
    uncached_tokens: int
    cached_tokens: int
    def __init__(self, key: _Optional[_Union[_types_pb2.RequestKey, _Mapping]] = ..., code: _Optional[int] = ..., uncached_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class TenantUse(_message.Message):
    __slots__ = ("tenant", "uncached_tokens", "cached_tokens", "output_tokens")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    uncached_tokens: int
    cached_tokens: int
    output_tokens: int
    def __init__(self, tenant: _Optional[str] = ..., uncached_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class ConnectWorkerResponse(_message.Message):
    __slots__ = ("welcome", "placed", "ranks", "drain", "heartbeat")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    welcome: WorkerWelcome
    placed: Placed
    ranks: Ranks
    drain: Drain
    heartbeat: _types_pb2.Heartbeat
    def __init__(self, welcome: _Optional[_Union[WorkerWelcome, _Mapping]] = ..., placed: _Optional[_Union[Placed, _Mapping]] = ..., ranks: _Optional[_Union[Ranks, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., heartbeat: _Optional[_Union[_types_pb2.Heartbeat, _Mapping]] = ...) -> None: ...

class WorkerWelcome(_message.Message):
    __slots__ = ("peer", "term", "submit_within_ms")
    PEER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    peer: _types_pb2.Peer
    term: int
    submit_within_ms: int
    def __init__(self, peer: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ..., term: _Optional[int] = ..., submit_within_ms: _Optional[int] = ...) -> None: ...

class Placed(_message.Message):
    __slots__ = ("highest_seq", "abandoned")
    HIGHEST_SEQ_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    highest_seq: int
    abandoned: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, highest_seq: _Optional[int] = ..., abandoned: _Optional[_Iterable[int]] = ...) -> None: ...

class Ranks(_message.Message):
    __slots__ = ("version", "over_share")
    class OverShareEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OVER_SHARE_FIELD_NUMBER: _ClassVar[int]
    version: int
    over_share: _containers.ScalarMap[str, float]
    def __init__(self, version: _Optional[int] = ..., over_share: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("tenants",)
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    tenants: bool
    def __init__(self, tenants: _Optional[bool] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("term", "waiting", "waiting_tokens", "oldest_wait_ms", "workers", "gateways", "placed_total", "rejected_total", "queues", "models", "quarantine", "tenants", "bands", "tenant_steps")
    TERM_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    PLACED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REJECTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    BANDS_FIELD_NUMBER: _ClassVar[int]
    TENANT_STEPS_FIELD_NUMBER: _ClassVar[int]
    term: int
    waiting: int
    waiting_tokens: int
    oldest_wait_ms: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    gateways: _containers.RepeatedCompositeFieldContainer[GatewayState]
    placed_total: int
    rejected_total: int
    queues: _containers.RepeatedCompositeFieldContainer[BandQueue]
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    quarantine: _containers.RepeatedCompositeFieldContainer[QuarantinedPrompt]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantState]
    bands: _containers.RepeatedScalarFieldContainer[str]
    tenant_steps: _containers.RepeatedCompositeFieldContainer[TenantStep]
    def __init__(self, term: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., oldest_wait_ms: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., gateways: _Optional[_Iterable[_Union[GatewayState, _Mapping]]] = ..., placed_total: _Optional[int] = ..., rejected_total: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[BandQueue, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ..., quarantine: _Optional[_Iterable[_Union[QuarantinedPrompt, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[TenantState, _Mapping]]] = ..., bands: _Optional[_Iterable[str]] = ..., tenant_steps: _Optional[_Iterable[_Union[TenantStep, _Mapping]]] = ...) -> None: ...

class TenantState(_message.Message):
    __slots__ = ("tenant", "weight", "band", "waiting", "waiting_tokens", "uncached_tokens", "cached_tokens", "output_tokens", "service", "budget_step")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    BAND_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_STEP_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    weight: float
    band: _types_pb2.Band
    waiting: int
    waiting_tokens: int
    uncached_tokens: int
    cached_tokens: int
    output_tokens: int
    service: float
    budget_step: _types_pb2.DegradationStep
    def __init__(self, tenant: _Optional[str] = ..., weight: _Optional[float] = ..., band: _Optional[_Union[_types_pb2.Band, str]] = ..., waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., uncached_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., service: _Optional[float] = ..., budget_step: _Optional[_Union[_types_pb2.DegradationStep, str]] = ...) -> None: ...

class BandQueue(_message.Message):
    __slots__ = ("band", "request_class", "model", "waiting")
    BAND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    band: _types_pb2.Band
    request_class: _types_pb2.RequestClass
    model: str
    waiting: int
    def __init__(self, band: _Optional[_Union[_types_pb2.Band, str]] = ..., request_class: _Optional[_Union[_types_pb2.RequestClass, str]] = ..., model: _Optional[str] = ..., waiting: _Optional[int] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("name", "epoch", "address", "model", "draining", "placed", "granted", "running", "waiting", "total_pages", "free_pages", "reclaimable_pages", "last_seen_ms", "breaker", "breaker_reason", "breaker_retry_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PAGES_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    RECLAIMABLE_PAGES_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    BREAKER_REASON_FIELD_NUMBER: _ClassVar[int]
    BREAKER_RETRY_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    address: str
    model: str
    draining: bool
    placed: int
    granted: int
    running: int
    waiting: int
    total_pages: int
    free_pages: int
    reclaimable_pages: int
    last_seen_ms: int
    breaker: Breaker
    breaker_reason: str
    breaker_retry_ms: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., address: _Optional[str] = ..., model: _Optional[str] = ..., draining: _Optional[bool] = ..., placed: _Optional[int] = ..., granted: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., total_pages: _Optional[int] = ..., free_pages: _Optional[int] = ..., reclaimable_pages: _Optional[int] = ..., last_seen_ms: _Optional[int] = ..., breaker: _Optional[_Union[Breaker, str]] = ..., breaker_reason: _Optional[str] = ..., breaker_retry_ms: _Optional[int] = ...) -> None: ...

class GatewayState(_message.Message):
    __slots__ = ("name", "epoch", "waiting")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    waiting: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., waiting: _Optional[int] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ("live",)
    LIVE_FIELD_NUMBER: _ClassVar[int]
    live: int
    def __init__(self, live: _Optional[int] = ...) -> None: ...

class QuarantinedPrompt(_message.Message):
    __slots__ = ("digest", "num_workers", "left_ms")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    num_workers: int
    left_ms: int
    def __init__(self, digest: _Optional[bytes] = ..., num_workers: _Optional[int] = ..., left_ms: _Optional[int] = ...) -> None: ...

class ReleaseQuarantineRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    def __init__(self, digest: _Optional[bytes] = ...) -> None: ...

class ReleaseQuarantineResponse(_message.Message):
    __slots__ = ("num_released",)
    NUM_RELEASED_FIELD_NUMBER: _ClassVar[int]
    num_released: int
    def __init__(self, num_released: _Optional[int] = ...) -> None: ...
