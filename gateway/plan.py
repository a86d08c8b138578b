"""What a request asks of scheduler and worker, and what makes text of the answer.

Everything is resolved by then; nothing is decided here.
"""

import time
from dataclasses import dataclass

from gateway.core.choice import Choice
from gateway.core.detokenizer import Detokenizer
from gateway.core.output_cap import OutputCap
from gateway.core.prompt_echo import PromptEcho
from gateway.core.request import GenerationRequest
from gateway.fitting import Fitted
from services.domain.degradation import Degraded, Step
from services.domain.generation import RequestClass
from services.domain.ids import RequestId, RequestKey
from services.domain.tenant import Tenant
from services.rpc.gateway_values import Acquisition, Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything resolved about a request before it asks for a place."""

    acquisition: Acquisition
    submission: Submission
    echo: PromptEcho | None
    """Where the prompt is to be given back."""
    choices: list[Choice]
    model: str
    revision: str
    cut_tokens: int
    degraded: tuple[Degraded, ...]
    """What it gets less of than it asked for."""


def make_plan(
    request: GenerationRequest,
    fitted: Fitted,
    *,
    request_id: RequestId,
    tenant: Tenant,
    salt: bytes,
    request_class: RequestClass,
    budget_step: Step,
    traceparent: str,
) -> Plan:
    """Say what a fitted request asks of scheduler and worker, from now on."""
    model, options, prompt, stop = fitted.model, fitted.options, fitted.prompt, fitted.stop
    # A worker takes a request without output only for its scores.
    is_scored = request.echo and (request.num_logprobs is not None or stop.max_output_tokens == 0)
    return Plan(
        acquisition=Acquisition(
            key=RequestKey(request_id, 1),
            tenant=tenant.id,
            band=options.band,
            weight=tenant.weight,
            band_asked=request.band,
            class_asked=request.request_class,
            request_class=request_class,
            model=model.local.name,
            num_prompt_tokens=len(prompt.ids),
            max_output_tokens=stop.max_output_tokens,
            num_choices=options.num_choices,
            # To be scored, a prompt is computed whole: it has no use for a place that knows its prefix.
            block_hashes=() if is_scored else prompt.block_hashes,
            limits=options.limits,
            asked_at=time.monotonic(),
            own_salt=bool(request.cache_salt),
            cache_opt_out=request.cache_opt_out or is_scored,
            traceparent=traceparent,
            prompt_digest=prompt.digest,
            budget_step=budget_step,
        ),
        submission=Submission(
            tenant=tenant.id,
            band=options.band,
            num_choices=options.num_choices,
            prompt_ids=prompt.ids,
            block_hashes=prompt.block_hashes,
            salt=salt,
            sampling=options.sampling,
            stop=stop,
            limits=options.limits,
            cache_opt_out=request.cache_opt_out,
            num_prompt_logprobs=(request.num_logprobs or 0) if is_scored else None,
            traceparent=traceparent,
        ),
        echo=_echo(request, fitted, is_scored=is_scored) if request.echo else None,
        choices=[_choice(index, request, fitted) for index in range(options.num_choices)],
        model=model.local.name,
        revision=model.state.revision,
        cut_tokens=prompt.cut_tokens,
        degraded=fitted.degraded,
    )


def _echo(request: GenerationRequest, fitted: Fitted, *, is_scored: bool) -> PromptEcho:
    return PromptEcho(
        fitted.prompt.ids,
        fitted.model.local.tokenizer.token_bytes,
        text=request.prompt,
        keep_records=_keeps_records(request),
        is_scored=is_scored,
    )


def _choice(index: int, request: GenerationRequest, fitted: Fitted) -> Choice:
    detokenizer = Detokenizer(
        fitted.model.local.tokenizer.token_bytes,
        stops=fitted.options.stop,
        include_stop=request.include_stop,
        stop_token_ids=fitted.options.stop_token_ids,
        keep_records=_keeps_records(request),
    )
    cap = fitted.output_cap
    return Choice(index, detokenizer, None if cap is None else OutputCap(cap))


def _keeps_records(request: GenerationRequest) -> bool:
    """Say whether the caller wants more of each token than its text."""
    return request.num_logprobs is not None or request.return_token_ids
