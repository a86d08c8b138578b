"""Pages of more than 16 tokens: the same bits and draws as with pages of 16, eager and captured."""

from collections import defaultdict

import numpy as np
import pytest
from numpy.typing import NDArray

from services.domain.kv_layout import KvFormat
from tests.fakes.contract_executors import Sequence, sequence, step, tiny_triton
from tests.fakes.fake_stream import FakeStream
from tests.fakes.interpreted_dots import use_one_order

pytestmark = pytest.mark.timeout(600)

LENGTHS = (70, 3)
"""One prompt is longer than the largest page here."""
CONTEXT = 96
Logits = dict[int, list[NDArray[np.float32]]]


def run(page_size: int, kv_format: KvFormat) -> tuple[Logits, list[list[int]], int]:
    """Two prompts in chunks that end anywhere in a page, a decode of both, and a hit on whole pages."""
    stream = FakeStream()
    executor = tiny_triton(stream, (2,), page_size=page_size, kv_format=kv_format)
    per_sequence = CONTEXT // page_size + 1
    executor.allocate(3 * per_sequence)
    # In no order, and of one sequence's not side by side.
    order = np.random.default_rng(page_size).permutation(3 * per_sequence).reshape(3, per_sequence).tolist()
    seen: Logits = defaultdict(list)
    executor.on_logits = lambda batch, logits: seen[len(batch.ids)].extend(logits)
    a, b = (
        sequence(seed, length, pages, temperature=0.0)
        for seed, length, pages in zip((1, 2), LENGTHS, order[:2], strict=True)
    )
    step(executor, [(a, 41)])
    step(executor, [(a, 29), (b, 3)])
    step(executor, [(a, 1), (b, 1)])
    whole = 64 // page_size
    hit = sequence(1, LENGTHS[0], [*order[0][:whole], *order[2][whole:]], temperature=0.0)
    hit.num_computed = 64
    step(executor, [(hit, 6)])
    step(executor, [(hit, 1)])
    return seen, outputs(a, b, hit), stream.calls["replay"]


def outputs(*sequences: Sequence) -> list[list[int]]:
    return [each.output_ids for each in sequences]


@pytest.mark.slow
@pytest.mark.parametrize(("page_size", "kv_format"), [(64, KvFormat.F32), (32, KvFormat.INT8)])
def test_the_page_size_changes_no_bit(
    page_size: int, kv_format: KvFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_one_order(monkeypatch)
    expected, drawn, _ = run(16, kv_format)
    found, ours, replays = run(page_size, kv_format)
    assert replays == 2
    assert ours == drawn
    assert ours[0] == ours[2], "a hit equals a miss"
    assert expected.keys() == found.keys()
    for size, rows in expected.items():
        assert np.array_equal(found[size], rows)
        assert np.isfinite(rows).all()
