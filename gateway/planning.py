"""Puts together what a request asks of scheduler and worker, and what makes text of the answer.

Everything is resolved by then; nothing is decided here.
"""

import time

from gateway.accounts import Run
from gateway.core.choice import Choice
from gateway.core.detokenizer import Detokenizer
from gateway.core.output_cap import OutputCap
from gateway.core.prompt_echo import PromptEcho
from gateway.fitting import Fitted
from gateway.places import Plan
from services.domain.degradation import Step
from services.domain.generation import RequestClass
from services.domain.ids import RequestKey
from services.rpc.gateway_values import Acquisition, Submission


def make_plan(
    run: Run,
    fitted: Fitted,
    *,
    salt: bytes,
    request_class: RequestClass,
    budget_step: Step,
) -> Plan:
    """Say what a fitted request asks of scheduler and worker, from now on."""
    request, live = run.request, run.live
    model, options, prompt, stop = fitted.model, fitted.options, fitted.prompt, fitted.stop
    cap = fitted.output_cap
    keep_records = request.num_logprobs is not None or request.return_token_ids
    # A worker takes a request without output only for its scores.
    is_scored = request.echo and (request.num_logprobs is not None or stop.max_output_tokens == 0)
    tokenizer = model.local.tokenizer
    return Plan(
        acquisition=Acquisition(
            key=RequestKey(live.id, 1),
            tenant=live.tenant.id,
            band=options.band,
            weight=live.tenant.weight,
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
            traceparent=run.traceparent,
            prompt_digest=prompt.digest,
            budget_step=budget_step,
        ),
        submission=Submission(
            tenant=live.tenant.id,
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
            traceparent=run.traceparent,
        ),
        echo=PromptEcho(
            prompt.ids,
            tokenizer.token_bytes,
            text=request.prompt,
            keep_records=keep_records,
            is_scored=is_scored,
        )
        if request.echo
        else None,
        choices=[
            Choice(
                index,
                Detokenizer(
                    tokenizer.token_bytes,
                    stops=options.stop,
                    include_stop=request.include_stop,
                    stop_token_ids=options.stop_token_ids,
                    keep_records=keep_records,
                ),
                None if cap is None else OutputCap(cap),
            )
            for index in range(options.num_choices)
        ],
        model=model.local.name,
        revision=model.state.revision,
        cut_tokens=prompt.cut_tokens,
        degraded=fitted.degraded,
    )
