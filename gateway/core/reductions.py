"""What one request gets less of, by the step its tenant stands on and what its tenant agreed to.

Pure: knows neither pressure nor models beyond their names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.core.limit_status import header_text
from services.domain.degradation import Degradation, Degraded, Step
from services.domain.generation import StopParams

DEGRADED_HEADER = "x-quire-degraded"
"""Name of the header or metadata that tells before the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reductions:
    """None: not less than asked for."""

    cap_output_tokens: int | None = None
    cut_prompt_tokens: int | None = None
    smaller_model: str | None = None


def reductions_of(policy: Degradation | None, step: Step, *names: str) -> Reductions:
    """Return what a request gets less of at `step`.

    Args:
        names: What its tenant calls its model by, in the order in which `smaller_models` is asked.
    """
    if policy is None:
        return Reductions()
    return Reductions(
        cap_output_tokens=policy.cap_output_tokens if step >= Step.CAP_OUTPUT else None,
        cut_prompt_tokens=policy.cut_prompt_tokens if step >= Step.CUT_CONTEXT else None,
        smaller_model=_smaller(policy, names) if step >= Step.SMALLER_MODEL else None,
    )


def _smaller(policy: Degradation, names: Iterable[str]) -> str | None:
    return next((policy.smaller_models[name] for name in names if name in policy.smaller_models), None)


def unheld(step: Step, batch_wait_s: float) -> list[Degraded]:
    """Return what to tell of arrivals that are not held back to be placed together."""
    if step < Step.BATCH_WAIT or not batch_wait_s:
        return []
    return [Degraded(Step.BATCH_WAIT, str(round(batch_wait_s * 1000)), "0")]


def headers_of(degraded: Iterable[Degraded]) -> Mapping[str, str]:
    """Return what an answer's head tells of the steps a request felt, nothing where there are none."""
    value = header_text("; ".join(map(str, degraded)))
    return {DEGRADED_HEADER: value} if value else {}


def capped(stop: StopParams, cap: int | None) -> Degraded | None:
    """Return what to tell of an output cap, None where it takes nothing.

    What is reserved and asked of the worker stays: an answer goes on until a sentence ends, and where none
    does to its own limit. A least output that the caller asked for moves the cap.
    """
    if cap is None or stop.max_output_tokens <= max(cap, stop.min_output_tokens):
        return None
    return Degraded(Step.CAP_OUTPUT, str(stop.max_output_tokens), str(max(cap, stop.min_output_tokens)))
