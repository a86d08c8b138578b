"""Fits a request to a model: checks it, tokenises its prompt and resolves its lengths.

Where its tenant has degraded, the request may get less than it asked for; what, is said beside the result.
Knows models and the tokenizer by their interfaces; reserves nothing and asks nobody for a place.
"""

import dataclasses
import secrets
from dataclasses import dataclass

from gateway.core.lengths import check_prompt, most_prompt_tokens, too_long
from gateway.core.reductions import Reductions, capped, reductions_of, unheld
from gateway.core.request import GenerationRequest
from gateway.core.validation import Options, check
from gateway.models import ModelBook, ServedModel
from gateway.prompts import Prompt, PromptEncoder, Salts
from services.artifacts.long_text import TooManyTokens
from services.domain.degradation import Degraded, Step
from services.domain.errors import InvalidField, NotYours, NoWorker, UnknownModel
from services.domain.generation import StopParams
from services.domain.tenant import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A request whose every value is resolved."""

    model: ServedModel
    options: Options
    prompt: Prompt
    stop: StopParams
    degraded: tuple[Degraded, ...] = ()
    """What it gets less of than it asked for, by step."""

    @property
    def output_cap(self) -> int | None:
        """Tokens after which each choice ends with its sentence."""
        return next((int(one.served) for one in self.degraded if one.step is Step.CAP_OUTPUT), None)


async def fit(
    request: GenerationRequest,
    tenant: Tenant,
    salts: Salts,
    models: ModelBook,
    encoder: PromptEncoder,
    *,
    budget_step: Step = Step.NONE,
) -> Fitted:
    """Fit a request to the model that its tenant means, or while that is overloaded to a smaller one.

    Args:
        budget_step: How far its tenant's budgets let it degrade, if that is further than overload has.

    Raises:
        ServeError: A field is out of range, the prompt cannot fit, or nobody serves the model.
    """
    model = models.find_for(tenant, request.model)
    seed = secrets.randbits(64)
    options = check(request, tenant, model.profile, seed, models.bands)
    step = models.step(model, options.band, tenant.id)
    held = unheld(step, model.state.batch_wait_s)
    name = model.local.name
    aliases = [alias for alias, meant in tenant.aliases.items() if meant == name]
    reductions = reductions_of(tenant.degradation, max(step, budget_step), name, *aliases)
    if reductions.smaller_model is not None:
        try:
            smaller = models.find_for(tenant, reductions.smaller_model)
            options_there = check(request, tenant, smaller.profile, seed, models.bands)
            fitted = await _fit(
                request, tenant, smaller, options_there, reductions, salts=salts, encoder=encoder
            )
        except (InvalidField, NotYours, NoWorker, UnknownModel):
            pass  # What does not fit the smaller model, or may not call it, is served by its own.
        else:
            # A ladder that is the parent's may name what is an alias of this very model here.
            moved = [Degraded(Step.SMALLER_MODEL, name, smaller.local.name)] * (smaller.local.name != name)
            return dataclasses.replace(fitted, degraded=(*held, *fitted.degraded, *moved))
    fitted = await _fit(request, tenant, model, options, reductions, salts=salts, encoder=encoder)
    return dataclasses.replace(fitted, degraded=(*held, *fitted.degraded))


async def _fit(
    request: GenerationRequest,
    tenant: Tenant,
    model: ServedModel,
    options: Options,
    reductions: Reductions,
    *,
    salts: Salts,
    encoder: PromptEncoder,
) -> Fitted:
    max_tokens = most_prompt_tokens(request, tenant, options, model.profile)
    is_cut_short = reductions.cut_prompt_tokens is not None and reductions.cut_prompt_tokens < max_tokens
    if reductions.cut_prompt_tokens is not None and is_cut_short:
        request, max_tokens = dataclasses.replace(request, cut_left=True), reductions.cut_prompt_tokens
    try:
        prompt = await encoder.encode(request, model, salts, max_tokens)
    except TooManyTokens as exc:
        raise too_long(request, tenant, options, max_tokens) from exc
    stop = check_prompt(request, tenant, options, model.profile, len(prompt.ids))
    cap = capped(stop, reductions.cap_output_tokens)
    degraded = [] if cap is None else [cap]
    if is_cut_short and prompt.cut_tokens:
        asked = len(prompt.ids) + prompt.cut_tokens
        degraded.append(Degraded(Step.CUT_CONTEXT, str(asked), str(len(prompt.ids))))
    return Fitted(model=model, options=options, prompt=prompt, stop=stop, degraded=tuple(degraded))
