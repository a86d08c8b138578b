from protos.types.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LongPrompt(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LONG_PROMPT_UNSPECIFIED: _ClassVar[LongPrompt]
    LONG_PROMPT_REFUSE: _ClassVar[LongPrompt]
    LONG_PROMPT_CUT_LEFT: _ClassVar[LongPrompt]
LONG_PROMPT_UNSPECIFIED: LongPrompt
LONG_PROMPT_REFUSE: LongPrompt
LONG_PROMPT_CUT_LEFT: LongPrompt

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "name")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    name: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ChatMessages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class SamplingOptions(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed")
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
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model", "prompt", "token_ids", "chat", "sampling", "n", "max_output_tokens", "min_output_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop", "logprobs", "return_token_ids", "band", "request_class", "limits", "long_prompt", "client_label", "idempotency_key", "cache_opt_out", "cache_salt", "echo", "band_name")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LONG_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_LABEL_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    CACHE_OPT_OUT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    BAND_NAME_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt: str
    token_ids: TokenIds
    chat: ChatMessages
    sampling: SamplingOptions
    n: int
    max_output_tokens: int
    min_output_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    include_stop: bool
    logprobs: int
    return_token_ids: bool
    band: _types_pb2.Band
    request_class: _types_pb2.RequestClass
    limits: _types_pb2.Limits
    long_prompt: LongPrompt
    client_label: str
    idempotency_key: str
    cache_opt_out: bool
    cache_salt: str
    echo: bool
    band_name: str
    def __init__(self, model: _Optional[str] = ..., prompt: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[ChatMessages, _Mapping]] = ..., sampling: _Optional[_Union[SamplingOptions, _Mapping]] = ..., n: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., min_output_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., include_stop: _Optional[bool] = ..., logprobs: _Optional[int] = ..., return_token_ids: _Optional[bool] = ..., band: _Optional[_Union[_types_pb2.Band, str]] = ..., request_class: _Optional[_Union[_types_pb2.RequestClass, str]] = ..., limits: _Optional[_Union[_types_pb2.Limits, _Mapping]] = ..., long_prompt: _Optional[_Union[LongPrompt, str]] = ..., client_label: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., cache_opt_out: _Optional[bool] = ..., cache_salt: _Optional[str] = ..., echo: _Optional[bool] = ..., band_name: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("queued", "still_waiting", "started", "delta", "finished", "receipt", "echo")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    STILL_WAITING_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    queued: Queued
    still_waiting: StillWaiting
    started: Started
    delta: Delta
    finished: Finished
    receipt: Receipt
    echo: Echo
    def __init__(self, queued: _Optional[_Union[Queued, _Mapping]] = ..., still_waiting: _Optional[_Union[StillWaiting, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., echo: _Optional[_Union[Echo, _Mapping]] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("request_id", "position", "expected_wait_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    position: int
    expected_wait_ms: int
    def __init__(self, request_id: _Optional[str] = ..., position: _Optional[int] = ..., expected_wait_ms: _Optional[int] = ...) -> None: ...

class StillWaiting(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Started(_message.Message):
    __slots__ = ("request_id", "model", "model_revision", "prompt_tokens", "cached_tokens", "seed", "cut_tokens", "degraded")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    model_revision: str
    prompt_tokens: int
    cached_tokens: int
    seed: int
    cut_tokens: int
    degraded: _containers.RepeatedCompositeFieldContainer[Degraded]
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., cut_tokens: _Optional[int] = ..., degraded: _Optional[_Iterable[_Union[Degraded, _Mapping]]] = ...) -> None: ...

class Degraded(_message.Message):
    __slots__ = ("step", "asked", "served")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    step: _types_pb2.DegradationStep
    asked: str
    served: str
    def __init__(self, step: _Optional[_Union[_types_pb2.DegradationStep, str]] = ..., asked: _Optional[str] = ..., served: _Optional[str] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("token_id", "token", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    token: bytes
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., token: _Optional[bytes] = ..., logprob: _Optional[float] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "token", "logprob", "top")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    token: bytes
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, token_id: _Optional[int] = ..., token: _Optional[bytes] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class Echo(_message.Message):
    __slots__ = ("text", "token_ids", "logprobs")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("choice", "text", "token_ids", "logprobs")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    choice: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, choice: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("choice", "reason", "stop_string", "output_tokens")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    choice: int
    reason: _types_pb2.FinishReason
    stop_string: str
    output_tokens: int
    def __init__(self, choice: _Optional[int] = ..., reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., stop_string: _Optional[str] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class CacheReport(_message.Message):
    __slots__ = ("miss_reason", "first_miss_token")
    MISS_REASON_FIELD_NUMBER: _ClassVar[int]
    FIRST_MISS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    miss_reason: _types_pb2.MissReason
    first_miss_token: int
    def __init__(self, miss_reason: _Optional[_Union[_types_pb2.MissReason, str]] = ..., first_miss_token: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("request_id", "usage", "queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "tpot_ms", "preemptions", "page_seconds", "worker", "attempts", "cache", "computed_tokens", "client_label", "exact", "degraded", "cost_nanos")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_LABEL_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    COST_NANOS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    usage: _types_pb2.Usage
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float
    tpot_ms: float
    preemptions: int
    page_seconds: float
    worker: str
    attempts: int
    cache: CacheReport
    computed_tokens: int
    client_label: str
    exact: bool
    degraded: _containers.RepeatedCompositeFieldContainer[Degraded]
    cost_nanos: int
    def __init__(self, request_id: _Optional[str] = ..., usage: _Optional[_Union[_types_pb2.Usage, _Mapping]] = ..., queue_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ..., decode_ms: _Optional[float] = ..., ttft_ms: _Optional[float] = ..., tpot_ms: _Optional[float] = ..., preemptions: _Optional[int] = ..., page_seconds: _Optional[float] = ..., worker: _Optional[str] = ..., attempts: _Optional[int] = ..., cache: _Optional[_Union[CacheReport, _Mapping]] = ..., computed_tokens: _Optional[int] = ..., client_label: _Optional[str] = ..., exact: _Optional[bool] = ..., degraded: _Optional[_Iterable[_Union[Degraded, _Mapping]]] = ..., cost_nanos: _Optional[int] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "text", "chat", "return_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    RETURN_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    chat: ChatMessages
    return_bytes: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[ChatMessages, _Mapping]] = ..., return_bytes: _Optional[bool] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("ids", "bytes", "max_context_tokens")
    IDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    bytes: _containers.RepeatedScalarFieldContainer[bytes]
    max_context_tokens: int
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., bytes: _Optional[_Iterable[bytes]] = ..., max_context_tokens: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "revision", "max_context_tokens", "num_workers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: str
    max_context_tokens: int
    num_workers: int
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[str] = ..., max_context_tokens: _Optional[int] = ..., num_workers: _Optional[int] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetRequestRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class GetRequestResponse(_message.Message):
    __slots__ = ("queued", "running", "receipt", "failure")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    queued: Queued
    running: Running
    receipt: Receipt
    failure: _types_pb2.Failure
    def __init__(self, queued: _Optional[_Union[Queued, _Mapping]] = ..., running: _Optional[_Union[Running, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., failure: _Optional[_Union[_types_pb2.Failure, _Mapping]] = ...) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("period", "by")
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    period: str
    by: _containers.RepeatedScalarFieldContainer[_types_pb2.UsageSplit]
    def __init__(self, period: _Optional[str] = ..., by: _Optional[_Iterable[_Union[_types_pb2.UsageSplit, str]]] = ...) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: _types_pb2.UsageReport
    def __init__(self, report: _Optional[_Union[_types_pb2.UsageReport, _Mapping]] = ...) -> None: ...

class Running(_message.Message):
    __slots__ = ("worker", "attempt", "output_tokens")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    attempt: int
    output_tokens: int
    def __init__(self, worker: _Optional[str] = ..., attempt: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...
