"""Every field is checked once, defaults are resolved once, and a refusal says what to change."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.lengths import check_prompt, class_of, most_prompt_tokens
from gateway.core.request import ChatTurn, GenerationRequest, SamplingOptions
from gateway.core.validation import Options, check
from services.domain.bands import Bands
from services.domain.capacity import Capacity, Fits, worst_case
from services.domain.errors import InvalidField, PromptTooLong
from services.domain.generation import Band, Limits, RequestClass
from tests.unit.gateway.builders import a_profile, a_request, a_sampled_request, a_tenant


def checked(request: GenerationRequest, **profile: Any) -> Options:
    return check(request, a_tenant(), a_profile(**profile), fresh_seed=99, bands=Bands())


BAD_FIELDS: list[tuple[str, GenerationRequest]] = [
    ("input", a_request(prompt=None)),
    ("input", a_request(token_ids=(1,))),
    ("prompt", a_request(prompt="")),
    ("prompt", a_request(prompt="a\ud800")),
    ("token_ids", a_request(prompt=None, token_ids=())),
    ("token_ids", a_request(prompt=None, token_ids=(300,))),
    ("token_ids", a_request(prompt=None, token_ids=(-1,))),
    ("token_ids", a_request(prompt=None, token_ids=(2**63,))),
    ("chat.messages", a_request(prompt=None, chat=())),
    ("chat.messages[0].role", a_request(prompt=None, chat=(ChatTurn(role="robot", content="x"),))),
    ("chat.messages[0].name", a_request(prompt=None, chat=(ChatTurn(role="user", content="x", name=""),))),
    ("n", a_request(num_choices=0)),
    ("n", a_request(num_choices=17)),
    ("max_output_tokens", a_request(max_output_tokens=0)),
    ("max_output_tokens", a_request(max_output_tokens=2049)),
    ("min_output_tokens", a_request(min_output_tokens=2049)),
    ("stop", a_request(stop=("x",) * 17)),
    ("stop[1]", a_request(stop=("a", ""))),
    ("stop[0]", a_request(stop=("a" * 257,))),
    ("stop_token_ids", a_request(stop_token_ids=(300,))),
    ("stop_token_ids", a_request(stop_token_ids=tuple(range(65)))),
    ("logprobs", a_request(num_logprobs=21)),
    ("logprobs", a_request(num_logprobs=-1)),
    ("client_label", a_request(client_label="x" * 65)),
    ("idempotency_key", a_request(idempotency_key="x" * 129)),
    ("cache_salt", a_request(cache_salt="x" * 129)),
    ("limits.queue_ms", a_request(limits=Limits(queue_s=0.0))),
    ("limits.first_token_ms", a_request(limits=Limits(first_token_s=-1.0))),
    ("limits.total_ms", a_request(limits=Limits(total_s=1e9))),
    ("sampling.temperature", a_sampled_request(temperature=2.01)),
    ("sampling.temperature", a_sampled_request(temperature=math.nan)),
    ("sampling.top_p", a_sampled_request(top_p=0.0)),
    ("sampling.top_p", a_sampled_request(top_p=1e-30)),
    ("sampling.top_k", a_sampled_request(top_k=301)),
    ("sampling.top_k", a_sampled_request(top_k=-1)),
    ("sampling.min_p", a_sampled_request(min_p=1.5)),
    ("sampling.repetition_penalty", a_sampled_request(repetition_penalty=0.0)),
    ("sampling.presence_penalty", a_sampled_request(presence_penalty=-2.5)),
    ("sampling.frequency_penalty", a_sampled_request(frequency_penalty=math.inf)),
    ("sampling.seed", a_sampled_request(seed=2**64)),
    ("sampling.logit_bias", a_sampled_request(logit_bias={300: 1.0})),
    ("sampling.logit_bias[5]", a_sampled_request(logit_bias={5: 101.0})),
    ("sampling.logit_bias", a_sampled_request(logit_bias=dict.fromkeys(range(1025), 0.0))),
]


@pytest.mark.failure("B072")
@pytest.mark.failure("B091")
@pytest.mark.failure("B095")
@pytest.mark.failure("B098")
@pytest.mark.failure("B100")
@pytest.mark.parametrize(("field", "request_"), BAD_FIELDS)
def test_a_bad_field_is_named_with_its_rule(field: str, request_: GenerationRequest) -> None:
    with pytest.raises(InvalidField) as caught:
        checked(request_)
    assert caught.value.detail.field == field
    assert "must " in str(caught.value)


def test_every_sampling_option_has_a_refusal() -> None:
    refused = {
        field.removeprefix("sampling.").split("[")[0] for field, _ in BAD_FIELDS if "sampling." in field
    }
    assert refused == {field.name for field in dataclasses.fields(SamplingOptions)}


@pytest.mark.failure("B093")
def test_explicit_values_win_over_the_models_defaults_and_those_over_documented_ones() -> None:
    defaults = {"temperature": 0.6, "top_k": 20}
    absent = checked(a_request(), generation_defaults=defaults).sampling
    explicit = checked(a_sampled_request(temperature=1.0, top_k=0), generation_defaults=defaults).sampling
    assert (absent.temperature, absent.top_k, absent.top_p) == (0.6, 20, 1.0)
    assert (explicit.temperature, explicit.top_k) == (1.0, 0)


@pytest.mark.failure("B081")
def test_zero_is_a_value_and_not_absence() -> None:
    sampling = SamplingOptions(temperature=0.0, seed=0)
    options = checked(a_request(sampling=sampling, num_logprobs=0))
    assert options.sampling.temperature == 0.0
    assert options.sampling.seed == 0
    assert options.sampling.num_logprobs == 0
    assert checked(a_request()).sampling.seed == 99
    assert checked(a_request()).sampling.num_logprobs is None


@pytest.mark.failure("B102")
def test_a_long_text_is_refused_by_its_bytes() -> None:
    with pytest.raises(PromptTooLong, match="at most 16384 bytes"):
        checked(a_request(prompt="a" * 1_000_000))
    with pytest.raises(PromptTooLong) as caught:
        checked(a_request(prompt=None, chat=(ChatTurn(role="user", content="é" * 5000),) * 2))
    assert caught.value.detail.field == "chat.messages[1].content"


def test_end_of_sequence_ids_are_stops_unless_ignored() -> None:
    assert checked(a_request(stop_token_ids=(7,))).stop_token_ids == {257, 7}
    assert checked(a_request(stop_token_ids=(7,), ignore_eos=True)).stop_token_ids == {7}


def test_a_caller_cannot_raise_its_band() -> None:
    assert checked(a_request(band="interactive")).band == Band.STANDARD
    assert checked(a_request(band="batch")).band == Band.BATCH


def test_bands_are_those_that_the_scheduler_has() -> None:
    bands = Bands(("live", "standard", "night", "weekly"))
    ranks = {
        name: check(a_request(band=name), a_tenant(), a_profile(), 0, bands).band for name in bands.names
    }
    assert ranks == {"live": 2, "standard": 2, "night": 3, "weekly": 4}
    with pytest.raises(InvalidField, match="live, standard, night, weekly, got 'batch'") as caught:
        check(a_request(band="batch"), a_tenant(), a_profile(), 0, bands)
    assert caught.value.detail.field == "band"
    # A tenant whose band is gone is served in the last one.
    assert check(a_request(), a_tenant(), a_profile(), 0, Bands(("live", "night"))).band == 2


def test_the_class_follows_the_prompt_and_can_only_be_lowered() -> None:
    assert class_of(None, a_tenant(), 100, 2048) is RequestClass.SHORT
    assert class_of(RequestClass.LONG, a_tenant(), 100, 2048) is RequestClass.LONG
    assert class_of(RequestClass.SHORT, a_tenant(), 2048, 2048) is RequestClass.LONG
    early = a_tenant(long_from_tokens=50)
    assert class_of(None, early, 50, 2048) is RequestClass.LONG
    assert class_of(None, early, 49, 2048) is RequestClass.SHORT


@pytest.mark.failure("B051")
@pytest.mark.failure("B067")
@given(
    st.integers(1, 1100),
    st.one_of(st.none(), st.integers(1, 1100)),
    st.integers(1, 16),
    st.sampled_from([1, 16, 64]),
    st.integers(1, 80),
)
def test_the_edge_admits_exactly_what_the_capacity_function_does(
    num_prompt: int, num_output: int | None, num_choices: int, page_size: int, pages: int
) -> None:
    capacity = Capacity(max_context_tokens=1024, total_pages=pages, page_size=page_size, max_sequences=8)
    profile = a_profile(capacity=capacity)
    request = a_request(max_output_tokens=num_output, num_choices=num_choices)
    if num_output is not None and num_output > 1024:
        return
    options = check(request, a_tenant(), profile, 0, Bands())
    fit = worst_case(num_prompt, num_output or 1, num_choices, capacity)
    if isinstance(fit, Fits):
        stop = check_prompt(request, a_tenant(), options, profile, num_prompt)
        assert isinstance(worst_case(num_prompt, stop.max_output_tokens, num_choices, capacity), Fits)
        assert num_output is None or stop.max_output_tokens == num_output
    else:
        with pytest.raises(PromptTooLong, match=str(fit.limit)):
            check_prompt(request, a_tenant(), options, profile, num_prompt)


def test_the_output_limit_defaults_to_what_is_left_and_at_most_the_tenants_default() -> None:
    request, profile = a_request(), a_profile()
    options = check(request, a_tenant(), profile, 0, Bands())
    small = a_tenant(default_max_output_tokens=50)
    assert check_prompt(request, small, options, profile, 100).max_output_tokens == 50
    assert check_prompt(request, a_tenant(), options, profile, 1000).max_output_tokens == 25


def test_a_least_output_above_the_limit_is_refused() -> None:
    request = a_request(max_output_tokens=10, min_output_tokens=11)
    with pytest.raises(InvalidField, match="0 to 10, got 11"):
        check_prompt(request, a_tenant(), checked(request), a_profile(), 5)


def test_a_prompt_that_may_be_cut_leaves_room_for_the_output() -> None:
    request = a_request(max_output_tokens=100)
    options = checked(request)
    assert most_prompt_tokens(request, a_tenant(), options, a_profile()) == 1024
    may_be_cut = dataclasses.replace(request, cut_left=True)
    assert most_prompt_tokens(may_be_cut, a_tenant(), options, a_profile()) == 925


def test_an_output_that_leaves_no_room_for_a_prompt_that_may_be_cut_is_refused_by_name() -> None:
    for asked, n, most in ((1025, 1, 1024), (65, 16, 64)):
        request = a_request(max_output_tokens=asked, num_choices=n, cut_left=True)
        with pytest.raises(PromptTooLong, match=f"must be at most {most} .*, n = {n}, got {asked}") as caught:
            most_prompt_tokens(request, a_tenant(), checked(request), a_profile())
        assert caught.value.detail.field == "max_output_tokens"
        fitting = dataclasses.replace(request, max_output_tokens=most)
        assert most_prompt_tokens(fitting, a_tenant(), checked(fitting), a_profile()) == 1


def test_many_choices_of_a_prompt_that_may_be_cut_share_what_the_pool_holds() -> None:
    request = a_request(num_choices=16, cut_left=True)
    assert most_prompt_tokens(request, a_tenant(), checked(request), a_profile()) == 65 - 65 // 4


def test_a_prompt_that_may_be_cut_may_have_more_bytes_than_fit() -> None:
    request = a_request(prompt="x" * 20_000)
    with pytest.raises(PromptTooLong, match="at most 16384 bytes"):
        checked(request)
    checked(dataclasses.replace(request, cut_left=True))
