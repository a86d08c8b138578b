"""A row of attention has the same bits whatever is beside it, however it was cut, wherever its pages are.

Dots are summed in one order here, as on a device: what is left is what the kernels themselves decide.
"""

import pytest
import torch

from tests.fakes.interpreted_dots import use_one_order
from tests.unit.kernels.paged_cases import (
    attend_decode,
    attend_ragged,
    paged_case,
    use_small_splits,
)

FORMATS = [(torch.float32, torch.float32), (torch.bfloat16, torch.int8)]


@pytest.fixture(autouse=True)
def _dots_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    use_one_order(monkeypatch)


@pytest.mark.failure("B094")
@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "window"),
    [
        pytest.param(*FORMATS[0], 0, marks=pytest.mark.slow),
        pytest.param(*FORMATS[0], 50, marks=pytest.mark.slow),
        pytest.param(*FORMATS[1], 0, marks=pytest.mark.slow),
        (*FORMATS[1], 50),
    ],
)
def test_alone_in_a_batch_in_chunks_and_decoded_are_the_same_bits(
    dtype: torch.dtype, kv_dtype: torch.dtype, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_splits(monkeypatch)
    lengths = [150, 7, 40]
    case = paged_case(lengths, dtype=dtype, kv_dtype=kv_dtype, heads=(3, 1), window=window)
    batch = attend_ragged(case, [(0, 150), (6, 7), (3, 40)])
    whole = batch[:150]
    alone = attend_ragged(case.only(0), [(0, 150)])
    assert torch.equal(whole, alone)
    for start, end in ((0, 5), (5, 64), (64, 129)):
        assert torch.equal(attend_ragged(case.only(0), [(start, end)]), whole[start:end])
    for context in (1, 65, 150):
        decoded = attend_decode(case, [context, 7, 40], lanes=2)
        assert torch.equal(decoded[0], whole[context - 1])
        assert torch.equal(decoded[1:], batch[[150, 187]])


def test_how_many_programs_share_the_splits_moves_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = [5 * use_small_splits(monkeypatch) + 1]
    case = paged_case(contexts, heads=(2, 1))
    one = attend_decode(case, contexts, lanes=1)
    assert torch.equal(one, attend_decode(case, contexts, lanes=4))
    assert torch.equal(one, attend_decode(case, contexts, lanes=9))


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [pytest.param(*FORMATS[0], marks=pytest.mark.slow), FORMATS[1]]
)
def test_another_order_of_pages_moves_no_bit(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    case = paged_case([90, 33], dtype=dtype, kv_dtype=kv_dtype)
    spans = [(60, 90), (32, 33)]
    assert torch.equal(attend_ragged(case, spans, seed=1), attend_ragged(case, spans, seed=2))
    assert torch.equal(attend_decode(case, [90, 33], seed=1), attend_decode(case, [90, 33], seed=2))
