"""Checks the lengths of a request against tenant, model and pool, and resolves its output limit.

One capacity function says what can ever fit; an error says need and limit. Knows no tokenizer.
"""

from gateway.core.request import GenerationRequest
from gateway.core.validation import ModelProfile, Options
from services.domain.capacity import Capacity, NeverFits, worst_case
from services.domain.errors import InvalidField, PromptTooLong
from services.domain.generation import RequestClass, StopParams
from services.domain.tenant import Tenant


def most_prompt_tokens(
    request: GenerationRequest, tenant: Tenant, options: Options, model: ModelProfile
) -> int:
    """Return how many tokens a prompt may have: one that may be cut leaves room for its output.

    Where no output limit was asked for, a quarter of what fits (at most the tenant's default) is kept.
    The tenant's own cap holds too.

    Raises:
        PromptTooLong: The output leaves no room for a prompt, however much of it is cut.
    """
    most = _most_tokens(options.num_choices, model.capacity)
    num_output = 0 if request.max_output_tokens == 0 else 1
    if request.cut_left:
        usual = max(1, min(tenant.default_max_output_tokens, most // 4))
        num_output = usual if request.max_output_tokens is None else request.max_output_tokens
        if num_output >= most:
            raise PromptTooLong(
                "max_output_tokens",
                f"must be at most {most - 1} for this model where the prompt is cut,"
                f" n = {options.num_choices}, got {num_output}",
            )
    fitting = max(0, most - num_output)
    return fitting if tenant.max_prompt_tokens is None else min(fitting, tenant.max_prompt_tokens)


def too_long(request: GenerationRequest, tenant: Tenant, options: Options, max_tokens: int) -> PromptTooLong:
    """Say that a prompt, not counted to its end, has more tokens than fit."""
    whose = "tenant" if max_tokens == tenant.max_prompt_tokens else "model"
    texts = [request.prompt or "", *(turn.content for turn in request.chat or ())]
    num_bytes = sum(len(text.encode()) for text in texts)
    return PromptTooLong(
        _input_field(request),
        f"must have at most {max_tokens} tokens for this {whose}, n = {options.num_choices},"
        f" got more than {max_tokens}, in {num_bytes} bytes",
    )


def check_prompt(
    request: GenerationRequest, tenant: Tenant, options: Options, model: ModelProfile, num_prompt_tokens: int
) -> StopParams:
    """Check the request's lengths once its prompt is tokenised, and resolve its output limit.

    Raises:
        InvalidField: The prompt is empty, or the least output exceeds the limit.
        PromptTooLong: It can never fit; the message holds need and limit.
    """
    field = _input_field(request)
    if num_prompt_tokens < 1:
        raise InvalidField(field, "must hold at least 1 token, got 0")
    if tenant.max_prompt_tokens is not None and num_prompt_tokens > tenant.max_prompt_tokens:
        raise PromptTooLong(
            field,
            f"must have at most {tenant.max_prompt_tokens} tokens for this tenant, got {num_prompt_tokens}",
        )
    room = _most_tokens(options.num_choices, model.capacity) - num_prompt_tokens
    num_output = request.max_output_tokens
    if num_output is None:
        num_output = max(1, min(room, tenant.default_max_output_tokens))
        if tenant.max_output_tokens is not None:
            num_output = min(num_output, tenant.max_output_tokens)
    fit = worst_case(num_prompt_tokens, num_output, options.num_choices, model.capacity)
    if isinstance(fit, NeverFits):
        at_fault = field if room < 1 else "max_output_tokens"
        raise PromptTooLong(
            at_fault,
            f"{num_prompt_tokens} prompt + {num_output} output tokens, n = {options.num_choices}: {fit}",
        )
    num_least = request.min_output_tokens or 0
    if num_least > num_output:
        raise InvalidField("min_output_tokens", f"must be 0 to {num_output}, got {num_least}")
    return StopParams(
        max_output_tokens=num_output,
        min_output_tokens=num_least,
        stop_token_ids=options.stop_token_ids,
    )


def class_of(
    asked: RequestClass | None, tenant: Tenant, num_prompt_tokens: int, long_from_tokens: int
) -> RequestClass:
    """Return short or long, by the prompt's length; a caller may only call its short request long.

    Args:
        asked: What the caller called it.
        long_from_tokens: Where the tenant has no threshold of its own.
    """
    if tenant.long_from_tokens is not None:
        long_from_tokens = tenant.long_from_tokens
    if num_prompt_tokens >= long_from_tokens or asked is RequestClass.LONG:
        return RequestClass.LONG
    return RequestClass.SHORT


def _most_tokens(num_choices: int, capacity: Capacity) -> int:
    """Return the longest prompt + output that `worst_case` accepts for each of `num_choices`."""
    in_pool = (capacity.total_pages // num_choices) * capacity.page_size + 1
    return min(capacity.max_context_tokens, in_pool)


def _input_field(request: GenerationRequest) -> str:
    if request.prompt is not None:
        return "prompt"
    return "token_ids" if request.token_ids is not None else "chat.messages"
