"""The ladder of degradation: its steps, what of them a tenant agreed to, and what one request got less of.

Values only. Who climbs is the scheduler's business, what a step does to a request the gateway's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class Step(IntEnum):
    """How far a band, a tenant in it, or one by its budget has climbed; a step holds all those below it."""

    NONE = 0
    BATCH_WAIT = 1
    """Arrivals are no longer held back to be placed together."""
    CAP_OUTPUT = 2
    """Answers end at the next sentence after fewer tokens."""
    CUT_CONTEXT = 3
    """Long prompts are cut from the left; the system message and the newest turns stay."""
    SMALLER_MODEL = 4
    """Requests go to a smaller model."""
    THROTTLE = 5
    """Of each tenant only a few requests may wait."""
    REFUSE = 6
    """Nothing more is let in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """The steps that change content and that a tenant agreed to; each is off until it is given."""

    cap_output_tokens: int | None = None
    """Tokens after which an answer ends with its sentence."""
    cut_prompt_tokens: int | None = None
    """Length that a prompt is cut to."""
    smaller_models: Mapping[str, str] = field(default_factory=dict)
    """What serves a model's requests instead of it; both by name or by an alias of the tenant, which stays
    with its own where it may not call the smaller one."""
    budget_at: float | None = None
    """Part of a soft budget, 1.0 for all of it, from which its requests get less although nothing is
    overloaded; None: budgets only warn."""


@dataclass(frozen=True, slots=True)
class Degraded:
    """What one request asked for, and what it was served."""

    step: Step
    asked: str
    served: str
    """In the step's own unit: milliseconds of batch wait, tokens of output or prompt, a model's name, or
    requests of its tenant that wait, this one included."""

    def __str__(self) -> str:
        return f"{self.step.name.lower()} {self.served}/{self.asked}"

    @property
    def metadata(self) -> dict[str, str]:
        """Return it as a refusal tells it; `degraded_of` reads it back."""
        return {"step": self.step.name.lower(), "asked": self.asked, "served": self.served}


def degraded_of(metadata: Mapping[str, str]) -> Degraded | None:
    """Return the step that a refusal was made by; None: it tells of none."""
    step = Step.__members__.get(metadata.get("step", "").upper())
    if step is None:
        return None
    return Degraded(step, metadata.get("asked", ""), metadata.get("served", ""))
