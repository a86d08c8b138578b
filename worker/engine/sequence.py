"""One choice of a request: its tokens, which of them are computed, and the pages that hold them.

Preemption, retry, resume and a cold start are one thing here: a sequence with fewer computed tokens than
tokens. Knows nothing of other sequences, of the pool's rules or of why it runs.
"""

from collections.abc import Sequence as SequenceOf
from enum import StrEnum
from typing import TYPE_CHECKING

from services.domain.block_hash import BLOCK_SIZE, hash_block
from services.domain.capacity import pages_for
from services.domain.generation import FinishReason
from services.domain.ids import BlockHash
from worker.engine.batch import SampleRow, TopLogprobs
from worker.engine.page_pool import PageId
from worker.engine.prompt_scores import PromptScores

if TYPE_CHECKING:
    from worker.engine.request import Request


class SequenceState(StrEnum):
    """Where a sequence is. Every live one is in exactly one state."""

    WAITING = "waiting"
    """Never started; no seat, no pages."""
    PREFIX_WAIT = "prefix_wait"
    """Has a seat (a group starts as one) and waits for its first choice's prefix, or for pages; no pages."""
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    """Lost its pages; no seat."""
    FINISHED = "finished"


# For what runs per sequence and step: to look a member up in its class costs ten times a global's price.
DECODE, PREFILL, PREFIX_WAIT = SequenceState.DECODE, SequenceState.PREFILL, SequenceState.PREFIX_WAIT


class Sequence:
    """Tokens, progress and pages of one choice."""

    __slots__ = (
        "_num_computed",
        "block_hashes",
        "choice",
        "finish_reason",
        "high_water",
        "leading",
        "logprobs",
        "max_pages",
        "may_wait_for_prefix",
        "num_found",
        "num_published",
        "output_ids",
        "page_size",
        "pages",
        "preemptions",
        "prefix_watch",
        "prompt_ids",
        "request",
        "reserved",
        "row",
        "sample_row",
        "scores",
        "skipped_steps",
        "state",
        "top",
    )

    def __init__(self, request: "Request", choice: int, output_ids: SequenceOf[int]) -> None:
        self.request = request
        self.choice = choice
        self.page_size = request.page_size
        self.prompt_ids = request.prompt_ids
        self.output_ids: list[int] = list(output_ids)
        self.block_hashes: list[BlockHash] = list(request.block_hashes)
        self.state = SequenceState.WAITING
        self._num_computed = 0
        self.high_water = 0
        """Most tokens computed or found cached by earlier runs: below it is recomputation."""
        self.num_found = 0
        """Leading pages that its last start took from the cache."""
        self.num_published = 0
        """Leading pages that the pool knows by name."""
        self.pages: list[PageId] = []
        self.row: int | None = None
        """Its row among those that generate; None before and after."""
        num_prompt = len(self.prompt_ids)
        max_stored = max(num_prompt, num_prompt + request.stop.max_output_tokens - 1)
        self.max_pages = pages_for(max_stored, self.page_size)
        """Pages of the worst case: the KV of the last output token is never written."""
        self.reserved = False
        """Holds its worst case: needs no further page and is no victim."""
        self.preemptions = 0
        self.skipped_steps = 0
        self.leading: list[BlockHash] = []
        """Names of pages that others may wait for while this one computes them."""
        self.prefix_watch: tuple[int, int, int] | None = None
        """While waiting: identity, progress and step of the leader when it was last seen to move."""
        self.may_wait_for_prefix = not request.cache_opt_out
        num_scores = request.num_prompt_logprobs
        # The choices share their prompt: one of them scores it.
        self.scores = None if num_scores is None or choice else PromptScores(self.prompt_ids, num_scores)
        self.finish_reason: FinishReason | None = None
        self.sample_row = SampleRow(
            params=request.sampling,
            choice=choice,
            position=len(self.output_ids),
            prompt_ids=self.prompt_ids,
            output_ids=self.output_ids,
            forbidden_ids=request.stop.stop_token_ids,
        )
        self.allow_stops()
        asked = request.sampling.num_logprobs
        self.logprobs: list[float | None] | None = None if asked is None else [None] * len(self.output_ids)
        self.top: list[TopLogprobs | None] | None = [None] * len(self.output_ids) if asked else None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_computed(self) -> int:
        """Tokens whose KV is in `pages`: counter and cache are one fact, changed only after a step."""
        return self._num_computed if self.row is None else self.num_tokens - 1

    @num_computed.setter
    def num_computed(self, num_tokens: int) -> None:
        assert self.row is None, "of a sequence that generates all tokens but the last are computed"
        self._num_computed = num_tokens

    @property
    def num_free_tokens(self) -> int:
        """Tokens it may draw before its minimum is reached, or its length."""
        stop, num_output = self.request.stop, len(self.output_ids)
        is_below = num_output < stop.min_output_tokens
        return (stop.min_output_tokens if is_below else stop.max_output_tokens) - num_output

    @property
    def is_seated(self) -> bool:
        return self.state in SEATED

    @property
    def is_started(self) -> bool:
        """Holds pages and may be in the next step."""
        return self.state is DECODE or self.state is PREFILL

    def end_row(self) -> None:
        """Generate no more, for now or for ever."""
        computed = self.num_computed
        self.row = None
        self.num_computed = computed

    def add_token(self, token_id: int) -> None:
        """Take a drawn token."""
        self.output_ids.append(token_id)
        self.sample_row.position += 1

    def allow_stops(self) -> None:
        """Let stop ids be drawn once there are enough tokens."""
        if len(self.output_ids) >= self.request.stop.min_output_tokens:
            self.sample_row.forbidden_ids = frozenset()

    def add_logprob(self, logprob: float, top: TopLogprobs | None) -> tuple[float, TopLogprobs | None]:
        """Note the log-probability of the token just added, and its alternatives where asked for."""
        assert self.logprobs is not None, "only where it was asked for"
        self.logprobs.append(logprob)
        if self.top is None:
            return logprob, None
        self.top.append(top)
        return logprob, top

    def ids(self, start: int, num_tokens: int) -> SequenceOf[int]:
        """Return `num_tokens` of prompt and output from position `start`."""
        split = len(self.prompt_ids)
        end = start + num_tokens
        if start >= split:
            return self.output_ids[start - split : end - split]
        if end <= split:
            return self.prompt_ids[start:end]
        return [*self.prompt_ids[start:], *self.output_ids[: end - split]]

    def hashes(self, num_blocks: int) -> list[BlockHash]:
        """Return the names of all full blocks known, the first `num_blocks` at least."""
        known = self.block_hashes
        while len(known) < num_blocks:
            block = self.ids(len(known) * BLOCK_SIZE, BLOCK_SIZE)
            previous = known[-1] if known else None
            known.append(hash_block(previous, block, salt=self.request.salt, adapter=self.request.adapter))
        return known

    def page_names(self, num_pages: int) -> list[BlockHash]:
        """Return the names of the first `num_pages` full pages: the hash of each one's last block."""
        per_page = self.page_size // BLOCK_SIZE
        return self.hashes(num_pages * per_page)[per_page - 1 : num_pages * per_page : per_page]

    def reusable_pages(self) -> list[BlockHash]:
        """Return the names of pages that a hit may take over.

        The last token is always computed again, and so is every one whose logits are still to score the next.
        """
        if self.request.cache_opt_out:
            return []
        num_tokens = self.num_tokens - 1
        if self.scores is not None:
            num_tokens = min(num_tokens, self.scores.num_reusable)
        return self.page_names(num_tokens // self.page_size)


SEATED = (DECODE, PREFILL, PREFIX_WAIT)
"""States of a sequence that has a seat."""
