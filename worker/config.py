"""Configuration of one worker process: what it serves, where, with how much memory and which limits.

Values found at run time (pages, epoch, digests) are not here.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from services.chassis.config import ByteSize, check_range
from services.domain.kv_layout import PAGE_SIZES, KvFormat


class Compute(StrEnum):
    """What activations become before a product with a quantised weight."""

    INT8 = "int8"
    FP32 = "fp32"


class DenseProducts(StrEnum):
    """What multiplies with weights of 16 bits on a GPU."""

    FIXED = "fixed"
    """Our kernel: every sum in one order, whatever else is in the step."""
    VENDOR = "vendor"


class ExecutorKind(StrEnum):
    """What computes a step."""

    AUTO = "auto"
    """Triton where there is a GPU, else native, or torch where that cannot be."""
    NATIVE = "native"
    TORCH = "torch"
    TRITON = "triton"
    SIM = "sim"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Serve one model on one device to all gateways.

    Example: quire worker --model smollm2-135m-instruct=/models/smollm2 --scheduler 127.0.0.1:50052
    """

    name: str = "worker-0"
    """Stable name of this process, unique in the fleet."""
    model: str = ""
    """NAME=PATH: the name callers use, and a model folder or GGUF file; a sim takes a bare NAME too."""
    executor: ExecutorKind = ExecutorKind.AUTO
    """triton computes on a GPU, native in C++, torch is the reference; auto takes the first of them that can;
    sim only waits as long as computing would take."""
    tensor_parallel_size: int = 1
    """Ranks that compute the model together, a process each, this one among them: triton on as many GPUs, or
    torch on the CPU, where it gains nothing but proof."""
    compute: Compute = Compute.INT8
    """What activations become before a product with quantised weights: int8 in groups of 32, or fp32. A GPU
    has int8 for weights of 8 bits alone, and under fp32 keeps activations in their 16."""
    dense_products: DenseProducts = DenseProducts.FIXED
    """On a GPU, what multiplies with weights of 16 bits: fixed is our kernel, whose bits no other request
    moves; vendor is the maker's library, under which answers may differ with what else is in the step."""
    kv_format: KvFormat | None = None
    """Numbers of the KV memory: f32 (not on a GPU), bf16, f16 (only there) or int8; absent: int8, and f32 in
    torch, which has no other."""
    instruction_set: str = "auto"
    """What native code is made for: avx512vnni, avx2vnni, avx2, neon or portable; auto: this CPU's best."""
    host: str = "127.0.0.1"
    """Address to listen on; beyond loopback only with TLS or --insecure."""
    port: int = 50060
    """Port of the gRPC service; 0 takes any free one."""
    advertise: str = ""
    """host:port by which gateways reach this worker; empty: host and port."""
    probe_port: int = 9110
    """Port of /healthz, /readyz and /metrics; 0 takes any free one."""
    scheduler: str = ""
    """host:port of the scheduler; empty: none, gateways must know this worker by themselves."""
    kvmanager: str = ""
    """host:port of the kvmanager; empty: none, prefixes are reused here but known to nobody."""
    kv_memory: ByteSize | None = None
    """Bytes of the KV pool, e.g. 512MiB; absent: by what is free (--kv-memory-fraction)."""
    page_size: int = 16
    """Tokens in a page of the KV pool: 16, 32, 64 or 128. A cached prefix is reused in whole pages."""
    kv_memory_fraction: float | None = None
    """Share of the memory free after loading that the KV pool takes when --kv-memory is absent; absent: 0.25,
    and on a GPU all that its largest step and a reserve leave."""
    max_context_tokens: int | None = None
    """Longest prompt + output; absent: the model's own limit."""
    max_sequences: int = 32
    """Sequences that run together."""
    cuda_graph_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    """On a GPU, numbers of sequences for which a decode step is captured as a CUDA graph, up to
    --max-sequences; a step takes the next larger one. [] in a file: none, all is launched by itself."""
    max_step_tokens: int = 512
    """Tokens of the largest step; decode takes its part first."""
    max_prefill_tokens: int = 256
    """Prefill tokens in one step: what a prefill adds to the gap between two tokens of a decode."""
    max_waiting: int = 256
    """Requests that wait here; the deep queue is the scheduler's."""
    stuck_after_s: float = 2.0
    """Seconds without a finished step, with work to do, after which the worker is not ready."""
    restart_after_s: float = 60.0
    """The same, after which the process ends to be restarted."""
    threads: int | None = None
    """Threads that compute; absent: one per core."""
    drain_limit_s: float = 30.0
    """Seconds from SIGTERM to a hard exit; what runs has a little less to finish."""
    insecure: bool = False
    """Listen beyond loopback without credentials."""
    trace: str = "none"
    """Where spans go: none, otlp, or file:PATH."""
    log_level: str = "info"
    """debug, info, warning or error."""
    sim_prefill_tokens_per_s: float = 2000.0
    """Tokens per second that the sim executor pretends to prefill."""
    sim_step_ms: float = 4.0
    """Milliseconds of any step of the sim executor."""
    sim_decode_ms: float = 0.6
    """Milliseconds that each decoding sequence adds to a step."""
    sim_context_ms: float = 0.4
    """Milliseconds that each 1,000 tokens of context of decoding sequences add to a step."""
    sim_vocab_size: int = 32_000
    """Ids of the sim executor when no model is given."""
    sim_context_tokens: int = 8192
    """Longest prompt + output of the sim executor when no model is given."""
    sim_bad_token: int | None = None
    """Fault on demand: prompts that hold this id get a NaN row."""
    sim_crash_token: int | None = None
    """Fault on demand: a step that computes this id ends the executor."""
    sim_stall_token: int | None = None
    """Fault on demand: a step that computes this id does not end."""
    sim_extra_step_ms: float = 0.0
    """Fault on demand: every step is slower by so much."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must be given")
        name, _, path = self.model.partition("=")
        if not name or (self.executor is not ExecutorKind.SIM and not path):
            raise ValueError(f"model must be NAME=PATH, got {self.model!r}")
        if self.page_size not in PAGE_SIZES:
            raise ValueError(
                f"page_size must be one of {', '.join(map(str, PAGE_SIZES))}, got {self.page_size}"
            )
        if self.kv_memory_fraction is not None:
            check_range("kv_memory_fraction", self.kv_memory_fraction, 0.01, 0.95)
        check_range("tensor_parallel_size", self.tensor_parallel_size, 1, 64)
        if self.tensor_parallel_size > 1 and self.executor in (ExecutorKind.NATIVE, ExecutorKind.SIM):
            raise ValueError(
                f"tensor_parallel_size {self.tensor_parallel_size}: the {self.executor} executor is one"
                " process; take --executor triton or torch"
            )
        if self.dense_products is DenseProducts.VENDOR:
            self._check_vendor()
        check_range("max_sequences", self.max_sequences, 1, 1024)
        for size in self.cuda_graph_sizes:
            check_range("cuda_graph_sizes", size, 1, 1024)
        check_range("max_step_tokens", self.max_step_tokens, self.max_sequences + 1, 1 << 16)
        check_range("max_prefill_tokens", self.max_prefill_tokens, 1, self.max_step_tokens)
        check_range("max_waiting", self.max_waiting, 1)
        check_range("stuck_after_s", self.stuck_after_s, 0.1)
        check_range("restart_after_s", self.restart_after_s, self.stuck_after_s)
        check_range("drain_limit_s", self.drain_limit_s, 1.0, 3600.0)
        if self.threads is not None:
            check_range("threads", self.threads, 1, 1024)

    def _check_vendor(self) -> None:
        if self.executor not in (ExecutorKind.AUTO, ExecutorKind.TRITON):
            raise ValueError(
                f"dense_products vendor: the {self.executor} executor has no such library; it is --executor"
                " triton's"
            )

    @property
    def model_name(self) -> str:
        return self.model.partition("=")[0]

    @property
    def model_path(self) -> Path | None:
        """Where the model lies; None for a sim without files."""
        path = self.model.partition("=")[2]
        return Path(path).expanduser() if path else None
