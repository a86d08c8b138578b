"""Attention over pages against its reference, interpreted: formats, shapes, windows, caps, poison.

Each value by itself; `test_paged_attention_forms.py` has any two of them together.
"""

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.paged_cases import (
    PagedCase,
    attend_decode,
    attend_ragged,
    expected,
    paged_case,
    use_small_splits,
)

# What a sequence computes of itself: a whole prompt, one more token, a chunk.
SPANS = [(0, 21), (37, 38), (9, 30)]
LENGTHS = [end for _, end in SPANS]
FEW = (2, 1)
"""Heads of q and of KV where their number is of no matter."""
LASTS = [(length - 1, length) for length in LENGTHS]

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Absolute, from u, half a unit in the last place of numbers below 4, as values and outputs here are.

float16 (u = 2^-10) and bfloat16 (2^-7): 2u, one rounding of the weights and one of the output.
float32 (1.2e-7): 16u. Scores below 4 are off by u on either side, which moves an output by 4u for each;
exponents and sums, whose order differs, may take as much again.
"""

slow = pytest.mark.slow


def assert_close(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    assert ours.dtype is dtype
    torch.testing.assert_close(ours.float(), theirs, rtol=0, atol=TOLERANCE[dtype])


def assert_both_close(case: PagedCase, dtype: torch.dtype) -> None:
    assert_close(attend_ragged(case, SPANS), expected(case, SPANS), dtype)
    assert_close(attend_decode(case, LENGTHS), expected(case, LASTS), dtype)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [(torch.float32, torch.float32), (torch.float16, torch.float16), (torch.bfloat16, torch.int8)],
)
def test_formats_equal_the_reference(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    assert_both_close(paged_case(LENGTHS, dtype=dtype, kv_dtype=kv_dtype), dtype)


@pytest.mark.parametrize(("head_dim", "kv_dtype"), [(80, torch.int8), (256, torch.float32)])
def test_other_head_sizes_equal_the_reference(head_dim: int, kv_dtype: torch.dtype) -> None:
    assert_both_close(paged_case(LENGTHS, kv_dtype=kv_dtype, head_dim=head_dim, heads=FEW), torch.float32)


@pytest.mark.parametrize(
    "heads", [(7, 1), *(pytest.param(heads, marks=slow) for heads in ((1, 1), (3, 3), (6, 2), (20, 1)))]
)
def test_any_number_of_heads_shares_a_key_value_head(heads: tuple[int, int]) -> None:
    assert_both_close(paged_case(LENGTHS, heads=heads), torch.float32)


@pytest.mark.parametrize(("window", "soft_cap"), [(1, 0.0), pytest.param(16, 0.0, marks=slow), (23, 1.5)])
def test_windows_and_caps_equal_the_reference(window: int, soft_cap: float) -> None:
    assert_both_close(paged_case(LENGTHS, heads=FEW, window=window, soft_cap=soft_cap), torch.float32)


def test_pages_of_more_than_a_block_equal_the_reference() -> None:
    assert_both_close(paged_case(LENGTHS, heads=FEW, page_size=128, soft_cap=3.0), torch.float32)


@pytest.mark.parametrize("window", [pytest.param(0, marks=slow), 100])
def test_a_context_of_several_splits_equals_the_reference(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = 3 * use_small_splits(monkeypatch) + 5
    case = paged_case([length, 9], heads=(2, 1), window=window)
    spans = [(length - 11, length), (0, 9)]
    assert_close(attend_ragged(case, spans), expected(case, spans), torch.float32)
    lasts = [(length - 1, length), (8, 9)]
    assert_close(attend_decode(case, [length, 9]), expected(case, lasts), torch.float32)


@pytest.mark.parametrize(
    ("kv_dtype", "poison"), [pytest.param(torch.float32, 1e30, marks=slow), (torch.int8, torch.nan)]
)
def test_memory_that_no_token_wrote_is_never_read(kv_dtype: torch.dtype, poison: float) -> None:
    case = paged_case(LENGTHS, heads=FEW, kv_dtype=kv_dtype, window=20)
    assert torch.equal(attend_ragged(case, SPANS, poison=poison), attend_ragged(case, SPANS, poison=0.0))
    assert torch.equal(attend_decode(case, LENGTHS, poison=poison), attend_decode(case, LENGTHS, poison=0.0))


def test_large_scores_overflow_nothing() -> None:
    case = paged_case(LENGTHS, heads=FEW)
    case.q[0].mul_(1e3)
    case.keys[0].mul_(1e3)
    assert_both_close(case, torch.float32)


def test_a_row_of_nan_stays_alone() -> None:
    case = paged_case(LENGTHS, heads=FEW)
    clean = attend_ragged(case, SPANS)
    case.q[2][20] = torch.nan
    ours = attend_ragged(case, SPANS)
    row = 21 + 1 + (20 - 9)
    assert ours[row].isnan().all()
    others = torch.arange(len(ours)) != row
    torch.testing.assert_close(ours[others], clean[others], rtol=0, atol=1e-6)


def test_places_without_a_sequence_are_skipped() -> None:
    case = paged_case([21, 1])
    assert attend_decode(case, [21, 0]).shape[0] == 1
    ours = attend_ragged(case, [(0, 21), (0, 0)])
    assert torch.equal(ours, attend_ragged(case.only(0), [(0, 21)]))
