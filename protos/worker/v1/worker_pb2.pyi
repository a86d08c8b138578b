from protos.types.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConnectRequest(_message.Message):
    __slots__ = ("hello", "submit", "cancel", "finish_choice", "received")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    FINISH_CHOICE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    hello: GatewayHello
    submit: Submit
    cancel: Cancel
    finish_choice: FinishChoice
    received: Received
    def __init__(self, hello: _Optional[_Union[GatewayHello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., finish_choice: _Optional[_Union[FinishChoice, _Mapping]] = ..., received: _Optional[_Union[Received, _Mapping]] = ...) -> None: ...

class GatewayHello(_message.Message):
    __slots__ = ("peer", "received", "worker_epoch")
    PEER_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    peer: _types_pb2.Peer
    received: int
    worker_epoch: int
    def __init__(self, peer: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ..., received: _Optional[int] = ..., worker_epoch: _Optional[int] = ...) -> None: ...

class Received(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("handle", "key", "term", "seq", "epoch", "tenant", "band", "n", "prompt_ids", "output_ids", "block_hashes", "salt", "sampling", "max_output_tokens", "min_output_tokens", "stop_token_ids", "limits", "cache_opt_out", "traceparent", "num_prompt_logprobs")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BAND_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CACHE_OPT_OUT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    key: _types_pb2.RequestKey
    term: int
    seq: int
    epoch: int
    tenant: str
    band: _types_pb2.Band
    n: int
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    output_ids: _containers.RepeatedCompositeFieldContainer[ChoiceIds]
    block_hashes: bytes
    salt: bytes
    sampling: _types_pb2.Sampling
    max_output_tokens: int
    min_output_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    limits: _types_pb2.Limits
    cache_opt_out: bool
    traceparent: str
    num_prompt_logprobs: int
    def __init__(self, handle: _Optional[int] = ..., key: _Optional[_Union[_types_pb2.RequestKey, _Mapping]] = ..., term: _Optional[int] = ..., seq: _Optional[int] = ..., epoch: _Optional[int] = ..., tenant: _Optional[str] = ..., band: _Optional[_Union[_types_pb2.Band, str]] = ..., n: _Optional[int] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., output_ids: _Optional[_Iterable[_Union[ChoiceIds, _Mapping]]] = ..., block_hashes: _Optional[bytes] = ..., salt: _Optional[bytes] = ..., sampling: _Optional[_Union[_types_pb2.Sampling, _Mapping]] = ..., max_output_tokens: _Optional[int] = ..., min_output_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., limits: _Optional[_Union[_types_pb2.Limits, _Mapping]] = ..., cache_opt_out: _Optional[bool] = ..., traceparent: _Optional[str] = ..., num_prompt_logprobs: _Optional[int] = ...) -> None: ...

class ChoiceIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    def __init__(self, handle: _Optional[int] = ...) -> None: ...

class FinishChoice(_message.Message):
    __slots__ = ("handle", "choice", "reason")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    handle: int
    choice: int
    reason: _types_pb2.FinishReason
    def __init__(self, handle: _Optional[int] = ..., choice: _Optional[int] = ..., reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("position", "welcome", "step", "heartbeat")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    position: int
    welcome: WorkerWelcome
    step: StepOutputs
    heartbeat: _types_pb2.Heartbeat
    def __init__(self, position: _Optional[int] = ..., welcome: _Optional[_Union[WorkerWelcome, _Mapping]] = ..., step: _Optional[_Union[StepOutputs, _Mapping]] = ..., heartbeat: _Optional[_Union[_types_pb2.Heartbeat, _Mapping]] = ...) -> None: ...

class WorkerWelcome(_message.Message):
    __slots__ = ("peer", "resumed")
    PEER_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    peer: _types_pb2.Peer
    resumed: bool
    def __init__(self, peer: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ..., resumed: _Optional[bool] = ...) -> None: ...

class StepOutputs(_message.Message):
    __slots__ = ("step", "handles", "choices", "first_position", "counts", "token_ids", "logprobs", "tops", "events")
    STEP_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOPS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    step: int
    handles: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedScalarFieldContainer[int]
    first_position: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    tops: _containers.RepeatedCompositeFieldContainer[TokenTop]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, step: _Optional[int] = ..., handles: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[int]] = ..., first_position: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., tops: _Optional[_Iterable[_Union[TokenTop, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class TokenTop(_message.Message):
    __slots__ = ("index", "token_ids", "logprobs")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("handle", "accepted", "refused", "preempted", "choice_ended", "ended", "started", "prompt_scored")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_ENDED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SCORED_FIELD_NUMBER: _ClassVar[int]
    handle: int
    accepted: Accepted
    refused: _types_pb2.Failure
    preempted: Preempted
    choice_ended: ChoiceEnded
    ended: Ended
    started: Started
    prompt_scored: PromptScored
    def __init__(self, handle: _Optional[int] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., refused: _Optional[_Union[_types_pb2.Failure, _Mapping]] = ..., preempted: _Optional[_Union[Preempted, _Mapping]] = ..., choice_ended: _Optional[_Union[ChoiceEnded, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., prompt_scored: _Optional[_Union[PromptScored, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Started(_message.Message):
    __slots__ = ("cached_tokens",)
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    def __init__(self, cached_tokens: _Optional[int] = ...) -> None: ...

class Preempted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PromptScored(_message.Message):
    __slots__ = ("first_position", "logprobs", "top_ids", "top_logprobs")
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    first_position: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, first_position: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class ChoiceEnded(_message.Message):
    __slots__ = ("choice", "reason", "output_tokens")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    choice: int
    reason: _types_pb2.FinishReason
    output_tokens: int
    def __init__(self, choice: _Optional[int] = ..., reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("usage", "computed_tokens", "page_seconds", "peak_pages", "queue_s", "prefill_s", "decode_s", "preemptions", "failure")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PEAK_PAGES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    usage: _types_pb2.Usage
    computed_tokens: int
    page_seconds: float
    peak_pages: int
    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int
    failure: _types_pb2.Failure
    def __init__(self, usage: _Optional[_Union[_types_pb2.Usage, _Mapping]] = ..., computed_tokens: _Optional[int] = ..., page_seconds: _Optional[float] = ..., peak_pages: _Optional[int] = ..., queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., preemptions: _Optional[int] = ..., failure: _Optional[_Union[_types_pb2.Failure, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("name", "epoch", "model", "revision", "executor", "steps", "running", "waiting", "total_pages", "free_pages", "cached_pages", "held_pages", "prefill_tokens", "decode_tokens", "cached_tokens", "preemptions", "draining", "stuck_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PAGES_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    CACHED_PAGES_FIELD_NUMBER: _ClassVar[int]
    HELD_PAGES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    STUCK_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    model: str
    revision: str
    executor: str
    steps: int
    running: int
    waiting: int
    total_pages: int
    free_pages: int
    cached_pages: int
    held_pages: int
    prefill_tokens: int
    decode_tokens: int
    cached_tokens: int
    preemptions: int
    draining: bool
    stuck_ms: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., model: _Optional[str] = ..., revision: _Optional[str] = ..., executor: _Optional[str] = ..., steps: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., total_pages: _Optional[int] = ..., free_pages: _Optional[int] = ..., cached_pages: _Optional[int] = ..., held_pages: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., decode_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., draining: _Optional[bool] = ..., stuck_ms: _Optional[int] = ...) -> None: ...
