"""The worst-case function is the same arithmetic everywhere."""

from hypothesis import given
from hypothesis import strategies as st

from services.domain.capacity import Capacity, Fits, NeverFits, pages_for, worst_case

POOL = Capacity(max_context_tokens=4096, total_pages=64, page_size=16, max_sequences=32)


def test_the_worked_number_of_the_docstring() -> None:
    assert worst_case(100, 29, 2, POOL) == Fits(16)


def test_a_prompt_that_fills_the_pool_to_the_last_slot_fits() -> None:
    assert worst_case(1024, 1, 1, POOL) == Fits(64)
    assert worst_case(1025, 1, 1, POOL) == NeverFits("KV pages", 65, 64)


def test_every_refusal_names_need_and_limit() -> None:
    assert str(worst_case(4000, 97, 1, POOL)) == "needs 4097 tokens of context, the limit is 4096"
    assert str(worst_case(1, 1, 33, POOL)) == "needs 33 sequences, the limit is 32"


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 40))
def test_what_fits_holds_every_stored_token(prompt: int, output: int, num_choices: int) -> None:
    verdict = worst_case(prompt, output, num_choices, POOL)
    if isinstance(verdict, Fits):
        per_choice = verdict.num_pages // num_choices
        assert per_choice * POOL.page_size >= prompt + output - 1
        assert verdict.num_pages <= POOL.total_pages
    else:
        assert verdict.need > verdict.limit


@given(st.integers(0, 10**6), st.sampled_from([1, 16, 64]))
def test_pages_hold_their_tokens_and_no_page_is_spare(num_tokens: int, page_size: int) -> None:
    pages = pages_for(num_tokens, page_size)
    assert pages * page_size >= num_tokens > (pages - 1) * page_size or num_tokens == pages == 0
