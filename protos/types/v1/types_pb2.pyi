from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Band(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BAND_UNSPECIFIED: _ClassVar[Band]
    BAND_INTERACTIVE: _ClassVar[Band]
    BAND_STANDARD: _ClassVar[Band]
    BAND_BATCH: _ClassVar[Band]

class DegradationStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEGRADATION_STEP_UNSPECIFIED: _ClassVar[DegradationStep]
    DEGRADATION_STEP_BATCH_WAIT: _ClassVar[DegradationStep]
    DEGRADATION_STEP_CAP_OUTPUT: _ClassVar[DegradationStep]
    DEGRADATION_STEP_CUT_CONTEXT: _ClassVar[DegradationStep]
    DEGRADATION_STEP_SMALLER_MODEL: _ClassVar[DegradationStep]
    DEGRADATION_STEP_THROTTLE: _ClassVar[DegradationStep]
    DEGRADATION_STEP_REFUSE: _ClassVar[DegradationStep]

class RequestClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_CLASS_UNSPECIFIED: _ClassVar[RequestClass]
    REQUEST_CLASS_SHORT: _ClassVar[RequestClass]
    REQUEST_CLASS_LONG: _ClassVar[RequestClass]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_STOP_STRING: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_BUDGET: _ClassVar[FinishReason]

class MissReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISS_REASON_UNSPECIFIED: _ClassVar[MissReason]
    MISS_REASON_NONE: _ClassVar[MissReason]
    MISS_REASON_NEVER_SEEN: _ClassVar[MissReason]
    MISS_REASON_EVICTED_FOR_SPACE: _ClassVar[MissReason]
    MISS_REASON_EVICTED_BY_POLICY: _ClassVar[MissReason]
    MISS_REASON_WORKER_GONE: _ClassVar[MissReason]
    MISS_REASON_ON_ANOTHER_WORKER: _ClassVar[MissReason]
    MISS_REASON_OWN_SALT: _ClassVar[MissReason]
    MISS_REASON_OPT_OUT: _ClassVar[MissReason]
    MISS_REASON_FIRST_DIFFERENCE: _ClassVar[MissReason]
    MISS_REASON_UNKNOWN: _ClassVar[MissReason]
    MISS_REASON_IN_FLIGHT: _ClassVar[MissReason]

class UsageSplit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    USAGE_SPLIT_UNSPECIFIED: _ClassVar[UsageSplit]
    USAGE_SPLIT_TENANT: _ClassVar[UsageSplit]
    USAGE_SPLIT_DAY: _ClassVar[UsageSplit]
    USAGE_SPLIT_MONTH: _ClassVar[UsageSplit]
    USAGE_SPLIT_KEY: _ClassVar[UsageSplit]
    USAGE_SPLIT_MODEL: _ClassVar[UsageSplit]
BAND_UNSPECIFIED: Band
BAND_INTERACTIVE: Band
BAND_STANDARD: Band
BAND_BATCH: Band
DEGRADATION_STEP_UNSPECIFIED: DegradationStep
DEGRADATION_STEP_BATCH_WAIT: DegradationStep
DEGRADATION_STEP_CAP_OUTPUT: DegradationStep
DEGRADATION_STEP_CUT_CONTEXT: DegradationStep
DEGRADATION_STEP_SMALLER_MODEL: DegradationStep
DEGRADATION_STEP_THROTTLE: DegradationStep
DEGRADATION_STEP_REFUSE: DegradationStep
REQUEST_CLASS_UNSPECIFIED: RequestClass
REQUEST_CLASS_SHORT: RequestClass
REQUEST_CLASS_LONG: RequestClass
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_BUDGET: FinishReason
MISS_REASON_UNSPECIFIED: MissReason
MISS_REASON_NONE: MissReason
MISS_REASON_NEVER_SEEN: MissReason
MISS_REASON_EVICTED_FOR_SPACE: MissReason
MISS_REASON_EVICTED_BY_POLICY: MissReason
MISS_REASON_WORKER_GONE: MissReason
MISS_REASON_ON_ANOTHER_WORKER: MissReason
MISS_REASON_OWN_SALT: MissReason
MISS_REASON_OPT_OUT: MissReason
MISS_REASON_FIRST_DIFFERENCE: MissReason
MISS_REASON_UNKNOWN: MissReason
MISS_REASON_IN_FLIGHT: MissReason
USAGE_SPLIT_UNSPECIFIED: UsageSplit
USAGE_SPLIT_TENANT: UsageSplit
USAGE_SPLIT_DAY: UsageSplit
USAGE_SPLIT_MONTH: UsageSplit
USAGE_SPLIT_KEY: UsageSplit
USAGE_SPLIT_MODEL: UsageSplit

class RequestKey(_message.Message):
    __slots__ = ("request_id", "attempt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("queue_ms", "first_token_ms", "total_ms")
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    queue_ms: int
    first_token_ms: int
    total_ms: int
    def __init__(self, queue_ms: _Optional[int] = ..., first_token_ms: _Optional[int] = ..., total_ms: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "num_logprobs")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    num_logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., num_logprobs: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "output_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class UsageRow(_message.Message):
    __slots__ = ("tenant", "day", "month", "key", "model", "requests", "uncached_tokens", "cached_tokens", "output_tokens", "page_ms", "cost_nanos", "refusals")
    class RefusalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DAY_FIELD_NUMBER: _ClassVar[int]
    MONTH_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGE_MS_FIELD_NUMBER: _ClassVar[int]
    COST_NANOS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    day: str
    month: str
    key: str
    model: str
    requests: int
    uncached_tokens: int
    cached_tokens: int
    output_tokens: int
    page_ms: int
    cost_nanos: int
    refusals: _containers.ScalarMap[str, int]
    def __init__(self, tenant: _Optional[str] = ..., day: _Optional[str] = ..., month: _Optional[str] = ..., key: _Optional[str] = ..., model: _Optional[str] = ..., requests: _Optional[int] = ..., uncached_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., page_ms: _Optional[int] = ..., cost_nanos: _Optional[int] = ..., refusals: _Optional[_Mapping[str, int]] = ...) -> None: ...

class UsageReport(_message.Message):
    __slots__ = ("first_day", "last_day", "currency", "rows")
    FIRST_DAY_FIELD_NUMBER: _ClassVar[int]
    LAST_DAY_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    first_day: str
    last_day: str
    currency: str
    rows: _containers.RepeatedCompositeFieldContainer[UsageRow]
    def __init__(self, first_day: _Optional[str] = ..., last_day: _Optional[str] = ..., currency: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[UsageRow, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "reason", "message", "field", "retry_after_s", "quota", "usage", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    field: str
    retry_after_s: float
    quota: str
    usage: Usage
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_s: _Optional[float] = ..., quota: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("name", "epoch", "protocol_version", "build", "reads_several")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    READS_SEVERAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    protocol_version: int
    build: str
    reads_several: bool
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., protocol_version: _Optional[int] = ..., build: _Optional[str] = ..., reads_several: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
