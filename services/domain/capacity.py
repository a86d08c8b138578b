"""The one worst-case capacity function: edge, scheduler, worker and start-up sizing all ask it.

Knows arithmetic only: tokens in, pages out.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one worker can hold for one request."""

    max_context_tokens: int
    """Longest prompt + output of a sequence."""
    total_pages: int
    page_size: int
    """Tokens in a page."""
    max_sequences: int


class Fits(NamedTuple):
    """The request can finish alone on the worker; it needs at most this many pages."""

    num_pages: int


@dataclass(frozen=True, slots=True)
class NeverFits:
    """The request can never finish there; the numbers say why."""

    what: str
    need: int
    limit: int

    def __str__(self) -> str:
        return f"needs {self.need} {self.what}, the limit is {self.limit}"


def pages_for(num_tokens: int, page_size: int) -> int:
    """Return how many pages hold `num_tokens` (17 tokens in pages of 16 need 2)."""
    return -(-num_tokens // page_size)


def worst_case(
    num_prompt_tokens: int, max_output_tokens: int, num_choices: int, capacity: Capacity
) -> Fits | NeverFits:
    """Say whether a request can finish with nothing else on the worker and no page shared.

    KV of the last output token is never written, so a sequence stores prompt + output - 1 tokens (the prompt,
    where no output is asked for).
    Worked number: 100 + 29 tokens, n = 2, pages of 16: 128 stored tokens, 8 pages each, 16 pages.
    """
    num_tokens = num_prompt_tokens + max_output_tokens
    if num_tokens > capacity.max_context_tokens:
        return NeverFits("tokens of context", num_tokens, capacity.max_context_tokens)
    if num_choices > capacity.max_sequences:
        return NeverFits("sequences", num_choices, capacity.max_sequences)
    num_pages = num_choices * pages_for(max(num_prompt_tokens, num_tokens - 1), capacity.page_size)
    if num_pages > capacity.total_pages:
        return NeverFits("KV pages", num_pages, capacity.total_pages)
    return Fits(num_pages)
