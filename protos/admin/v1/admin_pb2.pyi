from google.protobuf import field_mask_pb2 as _field_mask_pb2
from protos.types.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeyScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_SCOPE_UNSPECIFIED: _ClassVar[KeyScope]
    KEY_SCOPE_GENERATE: _ClassVar[KeyScope]
    KEY_SCOPE_USAGE: _ClassVar[KeyScope]
    KEY_SCOPE_ADMIN: _ClassVar[KeyScope]
KEY_SCOPE_UNSPECIFIED: KeyScope
KEY_SCOPE_GENERATE: KeyScope
KEY_SCOPE_USAGE: KeyScope
KEY_SCOPE_ADMIN: KeyScope

class Rate(_message.Message):
    __slots__ = ("per_minute", "burst")
    PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    per_minute: int
    burst: int
    def __init__(self, per_minute: _Optional[int] = ..., burst: _Optional[int] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("tokens", "hard", "warn_at")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    HARD_FIELD_NUMBER: _ClassVar[int]
    WARN_AT_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    hard: bool
    warn_at: float
    def __init__(self, tokens: _Optional[int] = ..., hard: _Optional[bool] = ..., warn_at: _Optional[float] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_concurrency", "requests_per_minute", "tokens_per_minute", "prompt_tokens_per_minute", "output_tokens_per_minute", "daily", "monthly", "utc_offset_minutes")
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    DAILY_FIELD_NUMBER: _ClassVar[int]
    MONTHLY_FIELD_NUMBER: _ClassVar[int]
    UTC_OFFSET_MINUTES_FIELD_NUMBER: _ClassVar[int]
    max_concurrency: int
    requests_per_minute: Rate
    tokens_per_minute: Rate
    prompt_tokens_per_minute: Rate
    output_tokens_per_minute: Rate
    daily: Budget
    monthly: Budget
    utc_offset_minutes: int
    def __init__(self, max_concurrency: _Optional[int] = ..., requests_per_minute: _Optional[_Union[Rate, _Mapping]] = ..., tokens_per_minute: _Optional[_Union[Rate, _Mapping]] = ..., prompt_tokens_per_minute: _Optional[_Union[Rate, _Mapping]] = ..., output_tokens_per_minute: _Optional[_Union[Rate, _Mapping]] = ..., daily: _Optional[_Union[Budget, _Mapping]] = ..., monthly: _Optional[_Union[Budget, _Mapping]] = ..., utc_offset_minutes: _Optional[int] = ...) -> None: ...

class Prices(_message.Message):
    __slots__ = ("currency", "uncached_per_million", "cached_per_million", "output_per_million", "page_hour")
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    CACHED_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_PER_MILLION_FIELD_NUMBER: _ClassVar[int]
    PAGE_HOUR_FIELD_NUMBER: _ClassVar[int]
    currency: str
    uncached_per_million: float
    cached_per_million: float
    output_per_million: float
    page_hour: float
    def __init__(self, currency: _Optional[str] = ..., uncached_per_million: _Optional[float] = ..., cached_per_million: _Optional[float] = ..., output_per_million: _Optional[float] = ..., page_hour: _Optional[float] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("id", "name", "parent", "band", "weight", "max_concurrency", "requests_per_minute", "tokens_per_minute", "prompt_tokens_per_minute", "output_tokens_per_minute", "daily", "monthly", "utc_offset_minutes", "long_from_tokens", "short_class", "long_class", "model_limits", "default_max_output_tokens", "max_output_tokens", "max_prompt_tokens", "models", "aliases", "kv_pages", "prices", "outage_allowance", "certificates", "degradation", "band_name")
    class ModelLimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Limits
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BAND_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    DAILY_FIELD_NUMBER: _ClassVar[int]
    MONTHLY_FIELD_NUMBER: _ClassVar[int]
    UTC_OFFSET_MINUTES_FIELD_NUMBER: _ClassVar[int]
    LONG_FROM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SHORT_CLASS_FIELD_NUMBER: _ClassVar[int]
    LONG_CLASS_FIELD_NUMBER: _ClassVar[int]
    MODEL_LIMITS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    KV_PAGES_FIELD_NUMBER: _ClassVar[int]
    PRICES_FIELD_NUMBER: _ClassVar[int]
    OUTAGE_ALLOWANCE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    DEGRADATION_FIELD_NUMBER: _ClassVar[int]
    BAND_NAME_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    parent: str
    band: _types_pb2.Band
    weight: float
    max_concurrency: int
    requests_per_minute: Rate
    tokens_per_minute: Rate
    prompt_tokens_per_minute: Rate
    output_tokens_per_minute: Rate
    daily: Budget
    monthly: Budget
    utc_offset_minutes: int
    long_from_tokens: int
    short_class: Limits
    long_class: Limits
    model_limits: _containers.MessageMap[str, Limits]
    default_max_output_tokens: int
    max_output_tokens: int
    max_prompt_tokens: int
    models: _containers.RepeatedScalarFieldContainer[str]
    aliases: _containers.ScalarMap[str, str]
    kv_pages: int
    prices: Prices
    outage_allowance: OutageAllowance
    certificates: _containers.RepeatedScalarFieldContainer[str]
    degradation: Degradation
    band_name: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., parent: _Optional[str] = ..., band: _Optional[_Union[_types_pb2.Band, str]] = ..., weight: _Optional[float] = ..., max_concurrency: _Optional[int] = ..., requests_per_minute: _Optional[_Union[Rate, _Mapping]] = ..., tokens_per_minute: _Optional[_Union[Rate, _Mapping]] = ..., prompt_tokens_per_minute: _Optional[_Union[Rate, _Mapping]] = ..., output_tokens_per_minute: _Optional[_Union[Rate, _Mapping]] = ..., daily: _Optional[_Union[Budget, _Mapping]] = ..., monthly: _Optional[_Union[Budget, _Mapping]] = ..., utc_offset_minutes: _Optional[int] = ..., long_from_tokens: _Optional[int] = ..., short_class: _Optional[_Union[Limits, _Mapping]] = ..., long_class: _Optional[_Union[Limits, _Mapping]] = ..., model_limits: _Optional[_Mapping[str, Limits]] = ..., default_max_output_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., max_prompt_tokens: _Optional[int] = ..., models: _Optional[_Iterable[str]] = ..., aliases: _Optional[_Mapping[str, str]] = ..., kv_pages: _Optional[int] = ..., prices: _Optional[_Union[Prices, _Mapping]] = ..., outage_allowance: _Optional[_Union[OutageAllowance, _Mapping]] = ..., certificates: _Optional[_Iterable[str]] = ..., degradation: _Optional[_Union[Degradation, _Mapping]] = ..., band_name: _Optional[str] = ...) -> None: ...

class Degradation(_message.Message):
    __slots__ = ("cap_output_tokens", "cut_prompt_tokens", "smaller_models", "budget_at")
    class SmallerModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CAP_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CUT_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SMALLER_MODELS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_AT_FIELD_NUMBER: _ClassVar[int]
    cap_output_tokens: int
    cut_prompt_tokens: int
    smaller_models: _containers.ScalarMap[str, str]
    budget_at: float
    def __init__(self, cap_output_tokens: _Optional[int] = ..., cut_prompt_tokens: _Optional[int] = ..., smaller_models: _Optional[_Mapping[str, str]] = ..., budget_at: _Optional[float] = ...) -> None: ...

class OutageAllowance(_message.Message):
    __slots__ = ("max_concurrency", "tokens")
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_concurrency: int
    tokens: int
    def __init__(self, max_concurrency: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class TenantRecord(_message.Message):
    __slots__ = ("tenant", "etag", "declared")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    etag: str
    declared: bool
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., etag: _Optional[str] = ..., declared: _Optional[bool] = ...) -> None: ...

class CreateTenantRequest(_message.Message):
    __slots__ = ("tenant", "dry_run")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    dry_run: bool
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class CreateTenantResponse(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: TenantRecord
    def __init__(self, record: _Optional[_Union[TenantRecord, _Mapping]] = ...) -> None: ...

class GetTenantRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class GetTenantResponse(_message.Message):
    __slots__ = ("record", "effective")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    record: TenantRecord
    effective: Tenant
    def __init__(self, record: _Optional[_Union[TenantRecord, _Mapping]] = ..., effective: _Optional[_Union[Tenant, _Mapping]] = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ("parent", "page_size", "page_token")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    parent: str
    page_size: int
    page_token: str
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("records", "next_page_token")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[TenantRecord]
    next_page_token: str
    def __init__(self, records: _Optional[_Iterable[_Union[TenantRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateTenantRequest(_message.Message):
    __slots__ = ("tenant", "update_mask", "etag", "dry_run")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    update_mask: _field_mask_pb2.FieldMask
    etag: str
    dry_run: bool
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., etag: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class UpdateTenantResponse(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: TenantRecord
    def __init__(self, record: _Optional[_Union[TenantRecord, _Mapping]] = ...) -> None: ...

class DeleteTenantRequest(_message.Message):
    __slots__ = ("id", "etag", "dry_run")
    ID_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    id: str
    etag: str
    dry_run: bool
    def __init__(self, id: _Optional[str] = ..., etag: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class DeleteTenantResponse(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...

class ApplyTenantsRequest(_message.Message):
    __slots__ = ("tenants", "delete_missing", "dry_run", "etag")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    DELETE_MISSING_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[Tenant]
    delete_missing: bool
    dry_run: bool
    etag: str
    def __init__(self, tenants: _Optional[_Iterable[_Union[Tenant, _Mapping]]] = ..., delete_missing: _Optional[bool] = ..., dry_run: _Optional[bool] = ..., etag: _Optional[str] = ...) -> None: ...

class ApplyTenantsResponse(_message.Message):
    __slots__ = ("changes", "etag")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    etag: str
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., etag: _Optional[str] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("id", "tenant", "label", "scopes", "limits", "created_at_ms", "expires_at_ms", "last_used_ms", "declared")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_MS_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    id: str
    tenant: str
    label: str
    scopes: _containers.RepeatedScalarFieldContainer[KeyScope]
    limits: Limits
    created_at_ms: int
    expires_at_ms: int
    last_used_ms: int
    declared: bool
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ..., label: _Optional[str] = ..., scopes: _Optional[_Iterable[_Union[KeyScope, str]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., created_at_ms: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., last_used_ms: _Optional[int] = ..., declared: _Optional[bool] = ...) -> None: ...

class CreateKeyRequest(_message.Message):
    __slots__ = ("tenant", "label", "scopes", "limits", "lifetime_s", "dry_run")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_S_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    label: str
    scopes: _containers.RepeatedScalarFieldContainer[KeyScope]
    limits: Limits
    lifetime_s: int
    dry_run: bool
    def __init__(self, tenant: _Optional[str] = ..., label: _Optional[str] = ..., scopes: _Optional[_Iterable[_Union[KeyScope, str]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., lifetime_s: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class CreateKeyResponse(_message.Message):
    __slots__ = ("key", "secret")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    key: Key
    secret: str
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ("tenant", "page_size", "page_token")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys", "next_page_token")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[Key]
    next_page_token: str
    def __init__(self, keys: _Optional[_Iterable[_Union[Key, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RotateKeyRequest(_message.Message):
    __slots__ = ("id", "overlap_s", "lifetime_s", "dry_run")
    ID_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_S_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_S_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    id: str
    overlap_s: int
    lifetime_s: int
    dry_run: bool
    def __init__(self, id: _Optional[str] = ..., overlap_s: _Optional[int] = ..., lifetime_s: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RotateKeyResponse(_message.Message):
    __slots__ = ("key", "secret", "old_key")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    OLD_KEY_FIELD_NUMBER: _ClassVar[int]
    key: Key
    secret: str
    old_key: Key
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., secret: _Optional[str] = ..., old_key: _Optional[_Union[Key, _Mapping]] = ...) -> None: ...

class RevokeKeyRequest(_message.Message):
    __slots__ = ("id", "dry_run")
    ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    id: str
    dry_run: bool
    def __init__(self, id: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RevokeKeyResponse(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: Key
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("version", "who", "at_ms", "kind", "id", "tenant", "before", "after")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    version: int
    who: str
    at_ms: int
    kind: str
    id: str
    tenant: str
    before: str
    after: str
    def __init__(self, version: _Optional[int] = ..., who: _Optional[str] = ..., at_ms: _Optional[int] = ..., kind: _Optional[str] = ..., id: _Optional[str] = ..., tenant: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class ListChangesRequest(_message.Message):
    __slots__ = ("tenant", "page_size", "page_token")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListChangesResponse(_message.Message):
    __slots__ = ("changes", "next_page_token")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    next_page_token: str
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("tenant", "period", "by")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    period: str
    by: _containers.RepeatedScalarFieldContainer[_types_pb2.UsageSplit]
    def __init__(self, tenant: _Optional[str] = ..., period: _Optional[str] = ..., by: _Optional[_Iterable[_Union[_types_pb2.UsageSplit, str]]] = ...) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: _types_pb2.UsageReport
    def __init__(self, report: _Optional[_Union[_types_pb2.UsageReport, _Mapping]] = ...) -> None: ...
