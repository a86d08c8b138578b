from protos.types.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RemovalReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REMOVAL_REASON_UNSPECIFIED: _ClassVar[RemovalReason]
    REMOVAL_REASON_SPACE: _ClassVar[RemovalReason]
    REMOVAL_REASON_POLICY: _ClassVar[RemovalReason]

class EvictionOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVICTION_ORDER_UNSPECIFIED: _ClassVar[EvictionOrder]
    EVICTION_ORDER_LRU: _ClassVar[EvictionOrder]
REMOVAL_REASON_UNSPECIFIED: RemovalReason
REMOVAL_REASON_SPACE: RemovalReason
REMOVAL_REASON_POLICY: RemovalReason
EVICTION_ORDER_UNSPECIFIED: EvictionOrder
EVICTION_ORDER_LRU: EvictionOrder

class ConnectWorkerRequest(_message.Message):
    __slots__ = ("hello", "snapshot", "events", "heartbeat", "slices", "policy")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    snapshot: Snapshot
    events: Events
    heartbeat: _types_pb2.Heartbeat
    slices: SlicesInForce
    policy: PolicyAnswer
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., events: _Optional[_Union[Events, _Mapping]] = ..., heartbeat: _Optional[_Union[_types_pb2.Heartbeat, _Mapping]] = ..., slices: _Optional[_Union[SlicesInForce, _Mapping]] = ..., policy: _Optional[_Union[PolicyAnswer, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("peer", "namespace", "total_pages", "page_size", "slices")
    PEER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    peer: _types_pb2.Peer
    namespace: str
    total_pages: int
    page_size: int
    slices: SlicesInForce
    def __init__(self, peer: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ..., namespace: _Optional[str] = ..., total_pages: _Optional[int] = ..., page_size: _Optional[int] = ..., slices: _Optional[_Union[SlicesInForce, _Mapping]] = ...) -> None: ...

class SlicesInForce(_message.Message):
    __slots__ = ("version", "tenants")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    tenants: _containers.RepeatedCompositeFieldContainer[SliceInForce]
    def __init__(self, version: _Optional[int] = ..., tenants: _Optional[_Iterable[_Union[SliceInForce, _Mapping]]] = ...) -> None: ...

class SliceInForce(_message.Message):
    __slots__ = ("tenant", "max_pages", "bound", "held", "needs", "waited_ms")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGES_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    max_pages: int
    bound: int
    held: int
    needs: int
    waited_ms: int
    def __init__(self, tenant: _Optional[str] = ..., max_pages: _Optional[int] = ..., bound: _Optional[int] = ..., held: _Optional[int] = ..., needs: _Optional[int] = ..., waited_ms: _Optional[int] = ...) -> None: ...

class PolicyAnswer(_message.Message):
    __slots__ = ("version", "refusal")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    version: int
    refusal: str
    def __init__(self, version: _Optional[int] = ..., refusal: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("seq", "hashes", "more", "first")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    seq: int
    hashes: bytes
    more: bool
    first: bool
    def __init__(self, seq: _Optional[int] = ..., hashes: _Optional[bytes] = ..., more: _Optional[bool] = ..., first: _Optional[bool] = ...) -> None: ...

class Events(_message.Message):
    __slots__ = ("seq", "stored", "removed", "removal_reason", "tenant_pages", "wants_more")
    class TenantPagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    REMOVAL_REASON_FIELD_NUMBER: _ClassVar[int]
    TENANT_PAGES_FIELD_NUMBER: _ClassVar[int]
    WANTS_MORE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    stored: bytes
    removed: bytes
    removal_reason: RemovalReason
    tenant_pages: _containers.ScalarMap[str, int]
    wants_more: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, seq: _Optional[int] = ..., stored: _Optional[bytes] = ..., removed: _Optional[bytes] = ..., removal_reason: _Optional[_Union[RemovalReason, str]] = ..., tenant_pages: _Optional[_Mapping[str, int]] = ..., wants_more: _Optional[_Iterable[str]] = ...) -> None: ...

class ConnectWorkerResponse(_message.Message):
    __slots__ = ("welcome", "slices", "policy", "need_snapshot", "heartbeat")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    NEED_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    welcome: WorkerWelcome
    slices: Slices
    policy: Policy
    need_snapshot: NeedSnapshot
    heartbeat: _types_pb2.Heartbeat
    def __init__(self, welcome: _Optional[_Union[WorkerWelcome, _Mapping]] = ..., slices: _Optional[_Union[Slices, _Mapping]] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., need_snapshot: _Optional[_Union[NeedSnapshot, _Mapping]] = ..., heartbeat: _Optional[_Union[_types_pb2.Heartbeat, _Mapping]] = ...) -> None: ...

class WorkerWelcome(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: _types_pb2.Peer
    def __init__(self, peer: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ...) -> None: ...

class Slices(_message.Message):
    __slots__ = ("version", "slices", "default_max")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_FIELD_NUMBER: _ClassVar[int]
    version: int
    slices: _containers.RepeatedCompositeFieldContainer[Slice]
    default_max: int
    def __init__(self, version: _Optional[int] = ..., slices: _Optional[_Iterable[_Union[Slice, _Mapping]]] = ..., default_max: _Optional[int] = ...) -> None: ...

class Slice(_message.Message):
    __slots__ = ("tenant", "max_pages", "cap")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGES_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    max_pages: int
    cap: int
    def __init__(self, tenant: _Optional[str] = ..., max_pages: _Optional[int] = ..., cap: _Optional[int] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("version", "eviction_order", "idle_ttl_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EVICTION_ORDER_FIELD_NUMBER: _ClassVar[int]
    IDLE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    eviction_order: EvictionOrder
    idle_ttl_ms: int
    def __init__(self, version: _Optional[int] = ..., eviction_order: _Optional[_Union[EvictionOrder, str]] = ..., idle_ttl_ms: _Optional[int] = ...) -> None: ...

class NeedSnapshot(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MatchRequest(_message.Message):
    __slots__ = ("hello", "query", "heartbeat", "several")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SEVERAL_FIELD_NUMBER: _ClassVar[int]
    hello: _types_pb2.Peer
    query: MatchQuery
    heartbeat: _types_pb2.Heartbeat
    several: _containers.RepeatedCompositeFieldContainer[MatchRequest]
    def __init__(self, hello: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ..., query: _Optional[_Union[MatchQuery, _Mapping]] = ..., heartbeat: _Optional[_Union[_types_pb2.Heartbeat, _Mapping]] = ..., several: _Optional[_Iterable[_Union[MatchRequest, _Mapping]]] = ...) -> None: ...

class MatchQuery(_message.Message):
    __slots__ = ("id", "hashes", "tenant", "own_salt", "namespace", "traceparent")
    ID_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OWN_SALT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    id: int
    hashes: bytes
    tenant: str
    own_salt: bool
    namespace: str
    traceparent: str
    def __init__(self, id: _Optional[int] = ..., hashes: _Optional[bytes] = ..., tenant: _Optional[str] = ..., own_salt: _Optional[bool] = ..., namespace: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class MatchResponse(_message.Message):
    __slots__ = ("welcome", "answer", "heartbeat", "caps", "several")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    CAPS_FIELD_NUMBER: _ClassVar[int]
    SEVERAL_FIELD_NUMBER: _ClassVar[int]
    welcome: _types_pb2.Peer
    answer: MatchAnswer
    heartbeat: _types_pb2.Heartbeat
    caps: Caps
    several: _containers.RepeatedCompositeFieldContainer[MatchResponse]
    def __init__(self, welcome: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ..., answer: _Optional[_Union[MatchAnswer, _Mapping]] = ..., heartbeat: _Optional[_Union[_types_pb2.Heartbeat, _Mapping]] = ..., caps: _Optional[_Union[Caps, _Mapping]] = ..., several: _Optional[_Iterable[_Union[MatchResponse, _Mapping]]] = ...) -> None: ...

class Caps(_message.Message):
    __slots__ = ("max_pages",)
    class MaxPagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MAX_PAGES_FIELD_NUMBER: _ClassVar[int]
    max_pages: _containers.ScalarMap[str, int]
    def __init__(self, max_pages: _Optional[_Mapping[str, int]] = ...) -> None: ...

class MatchAnswer(_message.Message):
    __slots__ = ("id", "matches", "miss_reason", "first_miss_token", "index_version")
    ID_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    MISS_REASON_FIELD_NUMBER: _ClassVar[int]
    FIRST_MISS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INDEX_VERSION_FIELD_NUMBER: _ClassVar[int]
    id: int
    matches: _containers.RepeatedCompositeFieldContainer[WorkerMatch]
    miss_reason: _types_pb2.MissReason
    first_miss_token: int
    index_version: int
    def __init__(self, id: _Optional[int] = ..., matches: _Optional[_Iterable[_Union[WorkerMatch, _Mapping]]] = ..., miss_reason: _Optional[_Union[_types_pb2.MissReason, str]] = ..., first_miss_token: _Optional[int] = ..., index_version: _Optional[int] = ...) -> None: ...

class WorkerMatch(_message.Message):
    __slots__ = ("worker", "epoch", "tokens")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    epoch: int
    tokens: int
    def __init__(self, worker: _Optional[str] = ..., epoch: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("workers", "queries_total", "hits_total", "index_version")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUERIES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HITS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    INDEX_VERSION_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerIndex]
    queries_total: int
    hits_total: int
    index_version: int
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerIndex, _Mapping]]] = ..., queries_total: _Optional[int] = ..., hits_total: _Optional[int] = ..., index_version: _Optional[int] = ...) -> None: ...

class WorkerIndex(_message.Message):
    __slots__ = ("worker", "epoch", "namespace", "blocks", "event_seq", "from_copy", "last_seen_ms", "tenant_pages", "policy_version")
    class TenantPagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EVENT_SEQ_FIELD_NUMBER: _ClassVar[int]
    FROM_COPY_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_PAGES_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    worker: str
    epoch: int
    namespace: str
    blocks: int
    event_seq: int
    from_copy: bool
    last_seen_ms: int
    tenant_pages: _containers.ScalarMap[str, int]
    policy_version: int
    def __init__(self, worker: _Optional[str] = ..., epoch: _Optional[int] = ..., namespace: _Optional[str] = ..., blocks: _Optional[int] = ..., event_seq: _Optional[int] = ..., from_copy: _Optional[bool] = ..., last_seen_ms: _Optional[int] = ..., tenant_pages: _Optional[_Mapping[str, int]] = ..., policy_version: _Optional[int] = ...) -> None: ...
