"""Attention in many forms, interpreted: any two of a head, types, a mask, a page, a group and a poison meet.

Where each value is looked at by itself is `test_paged_attention.py`.
"""

from itertools import combinations, product

import pytest
import torch

from tests.fakes.interpreted_dots import use_one_order
from tests.unit.kernels.paged_cases import attend_decode, attend_ragged, expected, paged_case
from worker.kernels.aot import CHIPS
from worker.kernels.covering import covering
from worker.kernels.paged_attention_forms import FORMATS, GROUPS, HEAD_DIMS, MASKS, PAGE_SIZES, forms
from worker.kernels.paged_attention_tuning import KERNELS, Kernel

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "i8": torch.int8}
TOLERANCE = {"fp32": 4e-6, "fp16": 4e-3, "bf16": 3.2e-2}
"""Twice that of `test_paged_attention.py`, which derives it: here dots add one product after the other."""
INTERPRETED = (*FORMATS, ("fp32", "i8"))
POISONS = (torch.nan, 1e30)
ROWS = covering(HEAD_DIMS, INTERPRETED, MASKS, PAGE_SIZES, GROUPS, POISONS)

SPANS = [(0, 21), (9, 38)]
CONTEXTS = [21, 38]
LASTS = [(20, 21), (37, 38)]


@pytest.mark.slow
@pytest.mark.failure("B094")
@pytest.mark.parametrize(
    ("head_dim", "types", "mask", "page_size", "group", "poison"), ROWS, ids=lambda value: str(value)
)
def test_any_two_values_meet_in_a_form_that_equals_the_reference(
    head_dim: int,
    types: tuple[str, str],
    mask: tuple[bool, bool],
    page_size: int,
    group: int,
    poison: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And pages in another order, with other numbers where no token wrote, move no bit of it."""
    use_one_order(monkeypatch)
    case = paged_case(
        CONTEXTS,
        dtype=TYPES[types[0]],
        kv_dtype=TYPES[types[1]],
        heads=(group, 1),
        head_dim=head_dim,
        page_size=page_size,
        window=17 if mask[0] else 0,
        soft_cap=1.5 if mask[1] else 0.0,
    )
    bound = TOLERANCE[types[0]]
    ragged = attend_ragged(case, SPANS, poison=poison, seed=1)
    torch.testing.assert_close(ragged.float(), expected(case, SPANS), rtol=0, atol=bound)
    assert torch.equal(ragged, attend_ragged(case, SPANS, poison=0.0, seed=2))
    decoded = attend_decode(case, CONTEXTS, poison=poison, seed=1)
    torch.testing.assert_close(decoded.float(), expected(case, LASTS), rtol=0, atol=bound)
    assert torch.equal(decoded, attend_decode(case, CONTEXTS, poison=0.0, seed=2))


@pytest.mark.parametrize("kernel", KERNELS)
def test_any_two_values_and_chips_meet_in_what_is_compiled_ahead_of_time(kernel: Kernel) -> None:
    compiled = [
        (chip, form.head_dim, form.types, form.mask, form.page_size, form.group)
        for chip in CHIPS
        for form in forms(chip, kernel)
    ]
    factors = (CHIPS, HEAD_DIMS, FORMATS, MASKS, PAGE_SIZES, GROUPS)
    for first, second in combinations(range(len(factors)), 2):
        met = {(row[first], row[second]) for row in compiled}
        assert met == set(product(factors[first], factors[second]))
    masks = MASKS if kernel == "ragged" else MASKS[:1]
    common = product(CHIPS, HEAD_DIMS, FORMATS[:2], masks, (16,), (4,))
    assert set(common) <= set(compiled)


def test_a_covering_begins_with_what_is_wanted_and_holds_every_pair() -> None:
    wanted = [("a", 2, None), ("b", 2, None)]
    rows = covering("ab", (1, 2, 3), (None,), taken=wanted)
    assert rows[:2] == wanted
    assert {row[:2] for row in rows} == {(letter, number) for letter in "ab" for number in (1, 2, 3)}
    assert len(rows) == 6
    assert covering("ab", (1, 2), (True, False)) == covering("ab", (1, 2), (True, False))
