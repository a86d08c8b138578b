"""Checks a Submit again before the engine holds it: the edge has, but one bad request must fail alone here.

Knows the model's sizes and the pool's; knows nothing of what else is running.
"""

from collections.abc import Iterable

from services.domain.block_hash import BLOCK_SIZE, DIGEST_BYTES
from services.domain.capacity import Capacity, NeverFits, worst_case
from services.domain.errors import ErrorDetail, InvalidField, PromptTooLong, ServeError, over_cap
from services.domain.generation import LEAST_FACTOR, MAX_CHOICES, MAX_LOGPROBS, SamplingParams
from worker.engine.commands import Submit
from worker.engine.config import EngineConfig


def find_fault(submit: Submit, config: EngineConfig, cap_pages: int) -> ServeError | None:
    """Return why the request can never run here, or None. `cap_pages`: the most its tenant can ever hold."""
    fault = _field_fault(submit, config.vocab_size)
    if fault is not None:
        return fault
    capacity = Capacity(
        max_context_tokens=config.max_context_tokens,
        total_pages=config.num_pages,
        page_size=config.page_size,
        max_sequences=config.max_sequences,
    )
    fit = worst_case(len(submit.prompt_ids), submit.stop.max_output_tokens, submit.num_choices, capacity)
    if isinstance(fit, NeverFits):
        error = PromptTooLong("max_output_tokens", f"the request {fit}")
        numbers = {"what": fit.what, "need": str(fit.need), "limit": str(fit.limit)}
        error.detail = ErrorDetail(field=error.detail.field, metadata=numbers)
        return error
    return over_cap(fit.num_pages, cap_pages) if fit.num_pages > cap_pages else None


def _field_fault(submit: Submit, vocab_size: int) -> ServeError | None:
    stop = submit.stop
    if not submit.prompt_ids:
        return InvalidField("prompt", "is empty; at least one token is needed")
    if not 1 <= submit.num_choices <= MAX_CHOICES:
        return InvalidField("n", f"must be 1..{MAX_CHOICES}, got {submit.num_choices}")
    # Only who wants the prompt itself scored may want nothing after it.
    least = 1 if submit.num_prompt_logprobs is None else 0
    if stop.max_output_tokens < least:
        return InvalidField("max_output_tokens", f"must be at least {least}, got {stop.max_output_tokens}")
    if not 0 <= stop.min_output_tokens <= stop.max_output_tokens:
        return InvalidField(
            "min_output_tokens", f"must be 0..{stop.max_output_tokens}, got {stop.min_output_tokens}"
        )
    if not 0 <= (submit.num_prompt_logprobs or 0) <= MAX_LOGPROBS:
        return InvalidField(
            "num_prompt_logprobs", f"must be 0..{MAX_LOGPROBS}, got {submit.num_prompt_logprobs}"
        )
    if submit.output_ids and len(submit.output_ids) != submit.num_choices:
        return InvalidField("output_ids", f"must have {submit.num_choices} entries")
    if any(len(ids) > stop.max_output_tokens for ids in submit.output_ids):
        return InvalidField("output_ids", "are more than max_output_tokens")
    num_blocks = len(submit.prompt_ids) // BLOCK_SIZE
    if len(submit.block_hashes) > num_blocks or any(len(h) != DIGEST_BYTES for h in submit.block_hashes):
        return InvalidField("block_hashes", f"must be at most {num_blocks} names of {DIGEST_BYTES} bytes")
    checked: tuple[tuple[str, Iterable[int]], ...] = (
        ("prompt", submit.prompt_ids),
        ("logit_bias", submit.sampling.logit_bias),
        ("stop_token_ids", stop.stop_token_ids),
        *(("output_ids", ids) for ids in submit.output_ids),
    )
    for field, ids in checked:
        if min(ids, default=0) < 0 or max(ids, default=0) >= vocab_size:
            return InvalidField(field, f"holds an id outside 0..{vocab_size - 1}")
    return _sampling_fault(submit.sampling)


def _sampling_fault(sampling: SamplingParams) -> ServeError | None:
    ranges: tuple[tuple[str, float, float, float], ...] = (
        ("temperature", sampling.temperature, 0, 2),
        ("top_p", sampling.top_p, LEAST_FACTOR, 1),
        ("top_k", sampling.top_k, 0, 2**31 - 1),
        ("min_p", sampling.min_p, 0, 1),
        ("repetition_penalty", sampling.repetition_penalty, LEAST_FACTOR, 10),
        ("presence_penalty", sampling.presence_penalty, -2, 2),
        ("frequency_penalty", sampling.frequency_penalty, -2, 2),
        ("seed", sampling.seed, 0, 2**64 - 1),
        ("num_logprobs", sampling.num_logprobs or 0, 0, MAX_LOGPROBS),
        *(("logit_bias", bias, -100, 100) for bias in sampling.logit_bias.values()),
    )
    for name, value, low, high in ranges:
        # Written so that NaN is refused as well.
        if not low <= value <= high:
            return InvalidField(f"sampling.{name}", f"must be {low}..{high}, got {value}")
    return None
