"""An executor without weights: it takes the time a model would take and draws deterministic tokens.

A token is a pure function of (prompt, last token, seed, choice, position): a preempted, resumed, batched or
cached sequence gives the same tokens, and different prompts give different ones. It draws uniformly from a
palette; of the sampling parameters it honours the seed, forbidden ids and logprobs. Serves load tests and
`bench`; knows nothing of scheduling.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import log
from operator import is_
from struct import Struct
from threading import Event
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from services.domain.block_hash import BLOCK_SIZE
from services.domain.ids import Namespace
from worker.engine.batch import Batch, Int32, SampleRow, StepResult, TopLogprobs
from worker.executors.base import ExecutorFault, ModelProfile, nothing


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


_CHOICE = Struct("<QI")
"""Seed and number of a choice."""
_HALF = np.uint64(32)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit of the values [O] over all of them.

    Source: Steele et al., OOPSLA '14, "Fast Splittable Pseudorandom Number Generators": its mix64.
    """
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


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
        self._palette = np.array(tuple(config.palette) or range(config.vocab_size), np.int32)
        # The last step's rows and what was made of them: a row stays the same as long as its sequence lives.
        self._rows: tuple[SampleRow, ...] = ()
        self._keys = np.zeros(0, np.uint64)
        self._are_plain = True
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

    def allocate(self, num_pages: int, *, captures: bool = True) -> None:
        """Remember the pool's size, to check the page tables (see `Executor.allocate`)."""
        assert self._num_pages is None, "memory is allocated once"
        self._num_pages = num_pages

    def execute(self, batch: Batch, meanwhile: Callable[[], None] = nothing) -> StepResult:
        """Draw the batch's tokens, and return when a model would have."""
        started = self._clock()
        assert self._num_pages is not None, "memory is allocated before the first step"
        assert batch.page_table.size == 0 or int(batch.page_table.max()) < self._num_pages, "no such page"
        meanwhile()
        faults = self.faults
        if faults.stall_token is not None and faults.stall_token in batch.ids:
            faults.running.clear()
        faults.running.wait()
        if faults.crash or (faults.crash_token is not None and faults.crash_token in batch.ids):
            raise ExecutorFault("simulated crash")
        out_rows = batch.out_rows
        result = self._draw(batch.sampling, batch.positions[out_rows], batch.ids[out_rows], batch.targets)
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
        """Draw one token for each row by itself, or take its target, in no time. Bad rows fail."""
        positions = [len(row.prompt_ids) + row.position - 1 for row in rows]
        last_ids = [row.output_ids[-1] if row.output_ids else row.prompt_ids[-1] for row in rows]
        return self._draw(rows, np.array(positions, np.int32), np.array(last_ids, np.int32), targets)

    def _draw(
        self, rows: Sequence[SampleRow], positions: Int32, last_ids: Int32, targets: Int32 | None = None
    ) -> StepResult:
        """Draw one token for each row after `last_ids` [O] at `positions` [O], or take its target."""
        if not (len(rows) == len(self._rows) and all(map(is_, rows, self._rows))):
            self._rows = tuple(rows)
            self._keys = np.array([self._key(row) for row in rows], np.uint64)
            self._are_plain = not any(
                row.forbidden_ids or row.params.num_logprobs is not None for row in rows
            )
        places = _mixed(
            self._keys + _mixed(positions.astype(np.uint64) << _HALF | last_ids.astype(np.uint64))
        )
        indices = places % np.uint64(len(self._palette))
        num_rows = len(rows)
        result = StepResult(
            token_ids=self._palette[indices],
            failed=np.zeros(num_rows, np.bool_),
            logprobs=np.zeros(num_rows, np.float32),
            top=(None,) * num_rows,
        )
        if targets is not None:
            given = targets >= 0
            result.token_ids[given] = targets[given]
        if self._are_plain and self.faults.bad_token is None:
            return result
        return self._with_wishes(rows, indices.tolist(), result, targets)

    def _with_wishes(
        self, rows: Sequence[SampleRow], indices: list[int], result: StepResult, targets: Int32 | None
    ) -> StepResult:
        """Keep from forbidden ids, tell log-probabilities, let bad rows fail."""
        palette, size = self._palette, len(self._palette)
        top: list[TopLogprobs | None] = [None] * len(rows)
        for i, row in enumerate(rows):
            if self.faults.bad_token is not None and self.faults.bad_token in row.prompt_ids:
                result.failed[i] = True
                continue
            index = self._first_allowed(indices[i], row.forbidden_ids)
            if targets is None or targets[i] < 0:
                result.token_ids[i] = palette[index]
            if row.params.num_logprobs is not None:
                result.logprobs[i] = logprob = -log(size)
                num_top = min(row.params.num_logprobs, size)
                if num_top:
                    ids = tuple(int(palette[(index + k) % size]) for k in range(num_top))
                    top[i] = TopLogprobs(ids, (logprob,) * num_top)
        return replace(result, top=tuple(top))

    def _key(self, row: SampleRow) -> int:
        """Return what all draws of a row's choice have in common."""
        return crc32(_CHOICE.pack(row.params.seed, row.choice), self._prompt_digest(row.prompt_ids))

    def _first_allowed(self, index: int, forbidden_ids: frozenset[int]) -> int:
        """Return the first place in the palette from `index` on whose id may be drawn; `index` if none."""
        palette, size = self._palette, len(self._palette)
        allowed = (i for i in range(index, index + size) if palette[i % size] not in forbidden_ids)
        return next(allowed, index) % size

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
