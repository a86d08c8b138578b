"""What a generation is asked for and what it gives, resolved: every default is already applied.

Knows nothing of text (the detokeniser makes that), of queues or of pages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import ClassVar

MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_BANDS = 8
LEAST_FACTOR = 2.0**-30
"""Of what must be above 0, `top_p` and the repetition penalty; the same number in 32 bits."""


class Band(int):
    """Rank of a strict priority class, from 1; a lower one is served first. `bands.Bands` has the names."""

    __slots__ = ()

    INTERACTIVE: ClassVar["Band"]
    STANDARD: ClassVar["Band"]
    BATCH: ClassVar["Band"]


# The ranks where the configuration names no bands.
Band.INTERACTIVE, Band.STANDARD, Band.BATCH = Band(1), Band(2), Band(3)


class RequestClass(IntEnum):
    """Short or long request."""

    SHORT = 1
    LONG = 2


class FinishReason(StrEnum):
    """Why one choice ended well. Every other end is an error."""

    STOP = "stop"
    """An end-of-sequence id or a stop id."""
    STOP_STRING = "stop_string"
    LENGTH = "length"
    """The output limit or the context is used up."""
    BUDGET = "budget"
    """The tenant's hard budget is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn. Defaults are greedy-free: temperature 1, no filter, no penalty."""

    temperature: float = 1.0
    """0 is greedy (the lowest id wins a tie). 0..2."""
    top_p: float = 1.0
    """`LEAST_FACTOR`..1; 1 is off."""
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    """[0, 1]; 0 is off."""
    repetition_penalty: float = 1.0
    """(0, 10]; over prompt and output."""
    presence_penalty: float = 0.0
    """-2..2; over output only."""
    frequency_penalty: float = 0.0
    """-2..2; over output only."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id -> -100..100."""
    seed: int = 0
    """64 bits; the gateway chooses one where the client gave none."""
    num_logprobs: int | None = None
    """None: no logprobs; 0: of the chosen token only; up to 20 alternatives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopParams:
    """When a choice ends, as far as token ids tell. Stop strings are the detokeniser's (gateway)."""

    max_output_tokens: int
    min_output_tokens: int = 0
    """Until then `stop_token_ids` cannot be drawn."""
    stop_token_ids: frozenset[int] = frozenset()
    """End-of-sequence ids (unless ignored) and the caller's stop ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Relative time limits in seconds from now; None is no limit."""

    queue_s: float | None = None
    first_token_s: float | None = None
    total_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request over all its choices and attempts (charged once)."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused instead of computed, on the first attempt."""
    output_tokens: int = 0
