"""What a running suite of the tests is made of: its model, tenants, sizes and configuration file.

Knows no processes; `stack.py` runs them.
"""

from dataclasses import dataclass

MODEL = "smollm2-135m-instruct"
SIM_PAGE_BYTES = 368_640
REAL_PAGE_BYTES = 737_280
"""What a page of the real model takes: 30 layers of float32."""
UP_LIMIT_S = 90.0
REDIS_LIMIT_MS = 5_000
"""Long enough for a starved machine: whoever is told that the store is down was told wrongly."""
KEYS = {
    "red": "red-key-0001",
    "blue": "blue-key-0002",
    "green": "green-key-0003",
    "capped": "capped-key-0004",
}
"""Keys of the tenants in `FILE`; green may have 6 sequences at once, capped `CAP_PAGES` of KV."""
CAP_PAGES = 100
BAD_TOKEN = 30_999
"""A prompt that holds it gives a row of NaN."""
FILE = """
[worker]
executor = "{executor}"
compute = "{compute}"
kv_format = "{kv_format}"
sim_bad_token = 30999
{crash}threads = 1
sim_prefill_tokens_per_s = {prefill}
sim_step_ms = {step_ms}
sim_decode_ms = 0.1
restart_after_s = {restart_after_s}
stuck_after_s = {stuck_after_s}
[scheduler]
match_within_ms = 1000
submit_within_ms = 60000
[gateway]
server_key = "only of this test"
redis_limit_ms = {redis_limit_ms}
[[tenants]]
id = "red"
key = "red-key-0001"
max_concurrency = 4096
tokens_per_minute = 1000000000
[[tenants]]
id = "blue"
key = "blue-key-0002"
max_concurrency = 4096
tokens_per_minute = 1000000000
[[tenants]]
id = "green"
key = "green-key-0003"
max_concurrency = 6
[[tenants]]
id = "capped"
key = "capped-key-0004"
max_concurrency = 4096
tokens_per_minute = 1000000000
kv_pages = {cap_pages}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What differs between stacks."""

    is_sim: bool = True
    """Simulate the model, or compute it."""
    executor: str = "native"
    """What computes a real model."""
    kv_format: str = "f32"
    compute: str = "fp32"
    num_workers: int = 2
    num_pages: int = 160
    """KV pages of each worker."""
    prefill: float = 20_000.0
    """Tokens per second that a worker pretends to prefill."""
    step_ms: float = 2.0
    crash_token: int | None = None
    """A step that computes it is one in which the device of a simulated worker fails."""
    stuck_after_s: float = 2.0
    restart_after_s: float = 60.0
    up_limit_s: float = UP_LIMIT_S
    is_traced: bool = False

    @property
    def kv_memory(self) -> int:
        """Bytes of each worker's pool."""
        return self.num_pages * (SIM_PAGE_BYTES if self.is_sim else REAL_PAGE_BYTES)

    @property
    def file(self) -> str:
        """The text of the configuration file."""
        return FILE.format(
            executor=self.executor,
            compute=self.compute,
            kv_format=self.kv_format,
            crash="" if self.crash_token is None else f"sim_crash_token = {self.crash_token}\n",
            prefill=self.prefill,
            step_ms=self.step_ms,
            stuck_after_s=self.stuck_after_s,
            restart_after_s=self.restart_after_s,
            redis_limit_ms=REDIS_LIMIT_MS,
            cap_pages=CAP_PAGES,
        )


REAL = Setup(is_sim=False, num_workers=1, num_pages=256, stuck_after_s=30)
"""The real model on one worker; a long prefill takes its time on a busy machine."""
