"""What a check of `python -m bench.tenants` says: each is run with its feature and without.

A check that also holds without the feature would show nothing. Knows no check.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether what was promised holds, and the count that decided it."""

    holds: bool
    told: str


Check = Callable[[bool], Awaitable[Outcome]]
"""Called with whether the feature is on."""
