"""Checks every field of a request and resolves its defaults, in one place.

Explicit values win over the model's own generation defaults, which win over the documented ones. An error
names the field, its range and what was given: numbers and names as they are, of texts only the length. Knows
no tokenizer and no clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.core.request import GenerationRequest, SamplingOptions
from services.domain.bands import Bands
from services.domain.capacity import Capacity
from services.domain.document_values import nearest_name, refused
from services.domain.errors import InvalidField, PromptTooLong
from services.domain.generation import (
    LEAST_FACTOR,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_STOP_STRINGS,
    Band,
    Limits,
    SamplingParams,
)
from services.domain.tenant import Tenant

MAX_STOP_CHARS = 256
MAX_STOP_IDS = 64
MAX_LOGIT_BIASES = 1024
MAX_MESSAGES = 1024
MAX_LABEL_CHARS = 64
MAX_KEY_CHARS = 128
MAX_LIMIT_S = 86_400.0
MAX_SEED = 2**64 - 1
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """What the checks need to know of a model."""

    vocab_size: int
    max_prompt_bytes: int
    """A longer text cannot fit into the context, so it is refused before it is tokenised."""
    max_cut_prompt_bytes: int
    """The same of a text that may be cut: only what is kept of it is tokenised."""
    eos_token_ids: frozenset[int]
    generation_defaults: Mapping[str, float]
    """The model's own `temperature`, `top_p`, `top_k`, where it declares them."""
    capacity: Capacity
    """Of the largest worker that serves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A request whose every field is in range and resolved, but for its lengths."""

    sampling: SamplingParams
    num_choices: int
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    """The model's end-of-sequence ids, unless ignored, and the caller's."""
    band: Band
    limits: Limits


def check(
    request: GenerationRequest, tenant: Tenant, model: ModelProfile, fresh_seed: int, bands: Bands
) -> Options:
    """Check everything that can be checked before the prompt is tokenised.

    Args:
        bands: Those that the scheduler has.
        fresh_seed: 64 random bits, used where the caller gave no seed.

    Raises:
        InvalidField: The first field that is out of range.
    """
    _check_input(request, model)
    num_choices = _default(request.num_choices, 1)
    _within("n", num_choices, 1, MAX_CHOICES)
    if request.max_output_tokens is not None:
        least = 0 if request.echo else 1
        _within("max_output_tokens", request.max_output_tokens, least, model.capacity.max_context_tokens)
        if tenant.max_output_tokens is not None:
            _within("max_output_tokens", request.max_output_tokens, least, tenant.max_output_tokens)
    if request.min_output_tokens is not None:
        _within("min_output_tokens", request.min_output_tokens, 0, model.capacity.max_context_tokens)
    _count("stop", request.stop, MAX_STOP_STRINGS)
    for index, stop in enumerate(request.stop):
        _chars(f"stop[{index}]", stop, MAX_STOP_CHARS, least=1)
    _count("stop_token_ids", request.stop_token_ids, MAX_STOP_IDS)
    _ids("stop_token_ids", request.stop_token_ids, model.vocab_size)
    _chars("client_label", request.client_label, MAX_LABEL_CHARS)
    _chars("idempotency_key", request.idempotency_key, MAX_KEY_CHARS)
    _chars("cache_salt", request.cache_salt, MAX_KEY_CHARS)
    for name in ("queue_s", "first_token_s", "total_s"):
        limit: float | None = getattr(request.limits, name)
        if limit is not None and not 0 < limit <= MAX_LIMIT_S:
            _refuse(f"limits.{name[:-1]}ms", f"1 to {MAX_LIMIT_S * 1000:.0f}", f"{limit * 1000:.15g}")
    eos_ids = frozenset() if request.ignore_eos else model.eos_token_ids
    return Options(
        sampling=_sampling(request.sampling, request.num_logprobs, model, fresh_seed),
        num_choices=num_choices,
        stop=request.stop,
        stop_token_ids=eos_ids | frozenset(request.stop_token_ids),
        band=_checked_band(request.band, tenant, bands),
        limits=request.limits,
    )


def band_of(asked: str | None, tenant: Tenant, bands: Bands) -> Band:
    """Return the band of a request: its tenant's, or a lower one that the caller asked for."""
    best = bands.rank(tenant.band)
    return best if asked is None else max(best, bands.rank(asked))


def _checked_band(asked: str | None, tenant: Tenant, bands: Bands) -> Band:
    if asked is not None:
        bands.check("band", asked)
    return band_of(asked, tenant, bands)


def check_prompt_bytes(field: str, text: str, max_bytes: int) -> None:
    """Refuse a text that is certainly too long before anything is done with it.

    Raises:
        PromptTooLong: Too many bytes.
    """
    # Counting characters first keeps a huge text from being encoded only to be measured.
    num_bytes = len(text) if len(text) > max_bytes else len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > max_bytes:
        raise PromptTooLong(field, f"must be at most {max_bytes} bytes for this model, got {num_bytes}")


def _check_input(request: GenerationRequest, model: ModelProfile) -> None:
    max_bytes = model.max_cut_prompt_bytes if request.cut_left else model.max_prompt_bytes
    given = [name for name in ("prompt", "token_ids", "chat") if getattr(request, name) is not None]
    if len(given) != 1:
        found = "none" if not given else " and ".join(given)
        raise InvalidField("input", f"exactly one of prompt, token_ids and chat must be given, got {found}")
    if request.prompt is not None:
        if not request.prompt:
            raise InvalidField("prompt", "must hold at least 1 character, got 0")
        _check_text("prompt", request.prompt)
        check_prompt_bytes("prompt", request.prompt, max_bytes)
    if request.token_ids is not None:
        if not request.token_ids:
            raise InvalidField("token_ids", "must hold at least 1 id, got 0")
        if len(request.token_ids) > max_bytes:
            raise PromptTooLong(
                "token_ids", f"must hold at most {max_bytes} ids, got {len(request.token_ids)}"
            )
        _ids("token_ids", request.token_ids, model.vocab_size)
    if request.chat is not None:
        check_chat(request, max_bytes)


def check_chat(request: GenerationRequest, max_bytes: int) -> None:
    """Check the messages of a conversation.

    Raises:
        InvalidField: None or too many, an unknown role, too much text.
    """
    chat = request.chat or ()
    if not 1 <= len(chat) <= MAX_MESSAGES:
        raise InvalidField("chat.messages", f"must be 1 to {MAX_MESSAGES} messages, got {len(chat)}")
    left = max_bytes
    for index, turn in enumerate(chat):
        where = f"chat.messages[{index}]"
        if turn.role not in ROLES:
            nearest = nearest_name(turn.role, ROLES)
            raise refused(f"{where}.role", f"one of {', '.join(ROLES)}", turn.role, nearest)
        if turn.name is not None:
            _chars(f"{where}.name", turn.name, MAX_LABEL_CHARS, least=1)
        _check_text(f"{where}.content", turn.content)
        check_prompt_bytes(f"{where}.content", turn.content, left)
        left -= len(turn.content.encode())


def _sampling(
    given: SamplingOptions, num_logprobs: int | None, model: ModelProfile, fresh_seed: int
) -> SamplingParams:
    def resolved(name: str, documented: float) -> float:
        explicit: float | None = getattr(given, name)
        return explicit if explicit is not None else model.generation_defaults.get(name, documented)

    params = SamplingParams(
        temperature=resolved("temperature", 1.0),
        top_p=resolved("top_p", 1.0),
        top_k=int(resolved("top_k", 0)),
        min_p=resolved("min_p", 0.0),
        repetition_penalty=resolved("repetition_penalty", 1.0),
        presence_penalty=resolved("presence_penalty", 0.0),
        frequency_penalty=resolved("frequency_penalty", 0.0),
        logit_bias=dict(given.logit_bias),
        seed=_default(given.seed, fresh_seed),
        num_logprobs=num_logprobs,
    )
    _within("sampling.temperature", params.temperature, 0, 2)
    _factor("sampling.top_p", params.top_p, 1)
    _within("sampling.top_k", params.top_k, 0, model.vocab_size)
    _within("sampling.min_p", params.min_p, 0, 1)
    _factor("sampling.repetition_penalty", params.repetition_penalty, 10)
    _within("sampling.presence_penalty", params.presence_penalty, -2, 2)
    _within("sampling.frequency_penalty", params.frequency_penalty, -2, 2)
    _within("sampling.seed", params.seed, 0, MAX_SEED)
    if params.num_logprobs is not None:
        _within("logprobs", params.num_logprobs, 0, MAX_LOGPROBS)
    _count("sampling.logit_bias", params.logit_bias, MAX_LOGIT_BIASES)
    _ids("sampling.logit_bias", params.logit_bias, model.vocab_size)
    for token_id, bias in params.logit_bias.items():
        _within(f"sampling.logit_bias[{token_id}]", bias, -100, 100)
    return params


def _default(value: int | None, default: int) -> int:
    return default if value is None else value


def _within(field: str, value: float, low: float, high: float) -> None:
    # Also false for NaN.
    if not low <= value <= high:
        _refuse(field, f"{low} to {high}", value)


def _factor(field: str, value: float, high: float) -> None:
    if not LEAST_FACTOR <= value <= high:
        _refuse(field, f"above 0 (2^-30 at least) to {high}", value)


def _refuse(field: str, rule: str, given: object) -> None:
    raise InvalidField(field, f"must be {rule}, got {given}")


def _count(field: str, items: Iterable[object], most: int) -> None:
    num = len(tuple(items))
    if num > most:
        raise InvalidField(field, f"must have at most {most} entries, got {num}")


def _chars(field: str, text: str, most: int, *, least: int = 0) -> None:
    if not least <= len(text) <= most:
        raise InvalidField(field, f"must be {least} to {most} characters long, got {len(text)}")
    _check_text(field, text)


def _check_text(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidField(field, f"must be valid Unicode, got a lone surrogate at {exc.start}") from exc


def _ids(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            _refuse(field, f"ids of 0 to {vocab_size - 1}", token_id)
