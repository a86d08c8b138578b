"""Limits of the engine's policy, fixed at start. Knows nothing of models or devices."""

from dataclasses import dataclass

from services.domain.block_hash import BLOCK_SIZE
from services.domain.capacity import pages_for

MAX_SCORED_TOKENS = 64
"""Prompt tokens scored in one step: bounds the logits it holds (64 x 49,152 in float32 are 12.6 MB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How one worker's step scheduler behaves."""

    num_pages: int
    """Pages of the pool."""
    max_context_tokens: int
    """Longest prompt + output of a sequence."""
    vocab_size: int
    """Ids at or above it are refused."""
    page_size: int = BLOCK_SIZE
    """Tokens in a page."""
    max_sequences: int = 32
    """Sequences with a seat: rows of the largest step."""
    max_step_tokens: int = 512
    """Tokens of the largest step; decode takes its part first."""
    max_prefill_tokens: int = 256
    """Prefill tokens beside decode: bounds what a prefill adds to the gap between two tokens of a decode."""
    max_scored_tokens: int = MAX_SCORED_TOKENS
    """Prompt tokens scored in one step."""
    max_long_prefills: int = 4
    """Started prefills that need more than one step; shorter ones pass them."""
    max_prefill_skips: int = 4
    """Steps in a row that shorter prefills may take a started one's turn; then it goes first."""
    max_bypass: int = 16
    """Later arrivals that may start before one that waits for pages or seats; then nobody passes."""
    admission_window: int = 16
    """Waiting entries looked at in one step."""
    max_waiting: int = 256
    """Requests waiting here; more are refused. The deep queue is the scheduler's."""
    max_preemptions: int = 2
    """Preemptions after which a sequence starts only with its worst case reserved, and is no victim."""
    headroom_tokens: int = 32
    """Tokens for which pages are left for the growth of each running sequence when another one starts."""
    max_prefix_wait_steps: int = 16
    """Steps without progress after which nobody waits for another sequence's prefix any more."""

    @property
    def headroom_pages(self) -> int:
        """Pages of `headroom_tokens` (2 pages of 16, 1 of 64)."""
        return pages_for(self.headroom_tokens, self.page_size)

    def __post_init__(self) -> None:
        if self.max_step_tokens <= self.max_sequences:
            raise ValueError(
                f"max_step_tokens ({self.max_step_tokens}) must exceed max_sequences ({self.max_sequences}): "
                "decode must leave room for prefill"
            )
        for name in ("num_pages", "max_context_tokens", "vocab_size", "max_sequences", "max_prefill_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
