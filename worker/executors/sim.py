"""An executor without weights: it takes the time a model would take and draws deterministic tokens.

A token is a pure function of (prompt, history, seed, choice, position), so a preempted, resumed, batched or
cached sequence gives the same tokens, and different prompts give different ones. It draws uniformly from a
palette; of the sampling parameters it honours the seed, forbidden ids and logprobs. Serves load tests and
`bench`; knows nothing of scheduling.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import log
from struct import Struct
from threading import Event
from zlib import crc32

import numpy as np

from services.domain.block_hash import BLOCK_SIZE
from services.domain.ids import Namespace
from worker.engine.batch import Batch, Int32, SampleRow, StepResult, TopLogprobs
from worker.executors.base import ExecutorFault, ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds a step takes. Worked number with the defaults: 32 decodes at context 256 take
    0.004 + 32 × 0.0006 + 8,192 × 0.0000004 = 26 ms; 256 prefill tokens 128 ms."""

    prefill_tokens_per_s: float = 2000.0
    step_s: float = 0.004
    """Seconds of any step: reading the weights, launching."""
    decode_sequence_s: float = 0.0006
    """Seconds for each decoding sequence."""
    decode_context_token_s: float = 4e-7
    """Seconds for each token of KV that a decoding sequence reads."""

    def seconds(self, *, num_prefill_tokens: int, num_decodes: int, decode_context_tokens: int) -> float:
        """Return how long such a step takes."""
        return (
            self.step_s
            + num_prefill_tokens / self.prefill_tokens_per_s
            + num_decodes * self.decode_sequence_s
            + decode_context_tokens * self.decode_context_token_s
        )

    def step_seconds(self, batch: Batch) -> float:
        """Return how long `batch` takes; a sequence with one token in the step counts as decoding."""
        num_decodes = len(batch.context_len)
        if num_decodes == len(batch.ids):
            tokens = int(batch.context_len.sum())
            return self.seconds(num_prefill_tokens=0, num_decodes=num_decodes, decode_context_tokens=tokens)
        counts = np.diff(batch.query_start)
        decodes = counts == 1
        num_decodes = int(decodes.sum())
        return self.seconds(
            num_prefill_tokens=int(counts.sum()) - num_decodes,
            num_decodes=num_decodes,
            decode_context_tokens=int(batch.context_len[decodes].sum()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """What the simulated model is."""

    model: str = "sim"
    vocab_size: int = 32_000
    max_context_tokens: int = 8192
    page_size: int = BLOCK_SIZE
    """Tokens in a page."""
    page_bytes: int = 0
    """Bytes of KV it pretends to hold in one page."""
    palette: Sequence[int] = ()
    """Ids it draws from; empty is the whole vocabulary. Give ids of whole words for sensible text."""
    cost: CostModel = field(default_factory=CostModel)
    time_scale: float = 1.0
    """Real seconds for each simulated one; 0 does not sleep at all."""


@dataclass(slots=True)
class SimFaults:
    """Faults on demand. May be changed from any thread at any time."""

    extra_step_s: float = 0.0
    """Added to every step."""
    bad_token: int | None = None
    """Prompts that hold this id get a NaN row."""
    crash_token: int | None = None
    """A step that computes this id ends the executor."""
    stall_token: int | None = None
    """A step that computes this id stalls, and all after it, until `running` is set."""
    crash: bool = False
    """The next step ends the executor."""
    running: Event = field(default_factory=Event)
    """Cleared: steps stall until it is set."""

    def __post_init__(self) -> None:
        self.running.set()


_PLACE = Struct("<QIII")
"""Seed, choice, position and last token of a row."""


class SimExecutor:
    """Takes time, draws tokens."""

    _REMEMBERED_PROMPTS = 512

    def __init__(
        self,
        config: SimConfig,
        faults: SimFaults | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.config = config
        self.faults = faults if faults is not None else SimFaults()
        self._clock = clock
        self._sleep = sleep
        self._palette = tuple(config.palette) or range(config.vocab_size)
        self._num_pages: int | None = None
        self._prompts: OrderedDict[int, tuple[Sequence[int], int]] = OrderedDict()
        identity = blake2b(repr((config.model, config.vocab_size, tuple(config.palette))).encode())
        revision = identity.hexdigest()[:16]
        self._profile = ModelProfile(
            model=config.model,
            revision=revision,
            namespace=Namespace(f"{revision}/{config.page_size}"),
            numerics=revision,
            executor="sim",
            vocab_size=config.vocab_size,
            max_context_tokens=config.max_context_tokens,
            page_size=config.page_size,
            page_bytes=config.page_bytes,
            weight_bytes=0,
        )

    @property
    def profile(self) -> ModelProfile:
        return self._profile

    def allocate(self, num_pages: int) -> None:
        """Remember the pool's size, to check the page tables."""
        assert self._num_pages is None, "memory is allocated once"
        self._num_pages = num_pages

    def execute(self, batch: Batch) -> StepResult:
        """Draw the batch's tokens, and return when a model would have."""
        started = self._clock()
        assert self._num_pages is not None, "memory is allocated before the first step"
        assert batch.page_table.size == 0 or int(batch.page_table.max()) < self._num_pages, "no such page"
        faults = self.faults
        if faults.stall_token is not None and faults.stall_token in batch.ids:
            faults.running.clear()
        faults.running.wait()
        if faults.crash or (faults.crash_token is not None and faults.crash_token in batch.ids):
            raise ExecutorFault("simulated crash")
        result = self.draw(batch.sampling, batch.targets)
        seconds = (self.config.cost.step_seconds(batch) + faults.extra_step_s) * self.config.time_scale
        left = seconds - (self._clock() - started)
        if seconds > 0 and left > 0:
            self._sleep(left)
        return result

    def close(self) -> None:
        """Let a stalled step go."""
        self.faults.running.set()
        self._prompts.clear()

    def draw(self, rows: Sequence[SampleRow], targets: Int32 | None = None) -> StepResult:
        """Draw one token for each row, or take its target (`Batch.targets`), in no time. Bad rows fail."""
        token_ids: list[int] = [-1] * len(rows) if targets is None else targets.tolist()
        failed = np.zeros(len(rows), np.bool_)
        logprobs = np.zeros(len(rows), np.float32)
        top: list[TopLogprobs | None] = [None] * len(rows)
        palette, size = self._palette, len(self._palette)
        bad_token = self.faults.bad_token
        for i, row in enumerate(rows):
            prompt_ids, output_ids = row.prompt_ids, row.output_ids
            if bad_token is not None and bad_token in prompt_ids:
                failed[i] = True
                continue
            params = row.params
            last = output_ids[-1] if output_ids else 0
            place = _PLACE.pack(params.seed, row.choice, row.position, last)
            index = crc32(place, self._prompt_digest(prompt_ids)) % size
            if row.forbidden_ids:
                index = self._first_allowed(index, row.forbidden_ids)
            if token_ids[i] < 0:
                token_ids[i] = palette[index]
            if params.num_logprobs is not None:
                logprobs[i] = logprob = -log(size)
                num_top = min(params.num_logprobs, size)
                if num_top:
                    ids = tuple(palette[(index + k) % size] for k in range(num_top))
                    top[i] = TopLogprobs(ids, (logprob,) * num_top)
        drawn = np.array(token_ids, np.int32)
        return StepResult(token_ids=drawn, failed=failed, logprobs=logprobs, top=tuple(top))

    def _first_allowed(self, index: int, forbidden_ids: frozenset[int]) -> int:
        """Return the first place in the palette from `index` on whose id may be drawn; `index` if none."""
        size = len(self._palette)
        allowed = (
            i % size for i in range(index, index + size) if self._palette[i % size] not in forbidden_ids
        )
        return next(allowed, index)

    def _prompt_digest(self, prompt_ids: Sequence[int]) -> int:
        """Return a digest of the prompt, remembered by identity: a prompt is hashed once, not per token."""
        known = self._prompts.get(id(prompt_ids))
        if known is not None and known[0] is prompt_ids:
            return known[1]
        digest = crc32(np.array(prompt_ids, np.int64).tobytes())
        self._prompts[id(prompt_ids)] = (prompt_ids, digest)
        if len(self._prompts) > self._REMEMBERED_PROMPTS:
            self._prompts.popitem(last=False)
        return digest
