"""A row of native attention is the same bit for bit in every batch, chunking, sharing and number of threads.

Pages are NaN wherever no token was written, and page ids beyond a sequence's end point nowhere.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from tests.unit.executors.attention_probe import Float32, Look, Rows, Session, Shape, attention_command
from tests.unit.executors.probe_targets import OURS
from worker.executors.native.library import KV_FORMATS

pytestmark = pytest.mark.timeout(600)
"""The first test of an instruction set compiles it."""

LOOKS = [Look(), Look(window=50), Look(window=300), Look(soft_cap=3.0)]
SHAPES = [
    Shape(num_heads=3, num_pages=400),
    Shape(num_heads=4, num_kv_heads=2, head_dim=24, page_size=64, num_pages=100),
]


# Not the emulated ones: of NEON the first 43 of 152 tests took 230 s.
@pytest.fixture(scope="module", params=OURS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return attention_command(tmp_path_factory.getbasetemp(), request.param)


@pytest.fixture(
    params=[*itertools.product(SHAPES, KV_FORMATS)], ids=lambda pair: f"{pair[0].head_dim}-{pair[1]}"
)
def shape(request: pytest.FixtureRequest) -> Shape:
    base: Shape = request.param[0]
    return dataclasses.replace(base, kv_format=request.param[1])


def make_rows(shape: Shape, num_rows: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal((num_rows, shape.qkv_width)).astype(np.float32)


def num_pages(shape: Shape, num_rows: int) -> int:
    return -(-num_rows // shape.page_size)


def alone(program: list[str], shape: Shape, sequences: Sequence[Float32], look: Look) -> list[Float32]:
    """Return each sequence's rows when it is all that there is, in pages of NaN, on one thread."""
    session = Session(dataclasses.replace(shape, num_threads=1))
    for qkv in sequences:
        pages = range(num_pages(shape, len(qkv)))
        session.step([Rows(qkv, 0, pages)], look)
        session.fill(0xFF, pages)
    return [rows for (rows,) in session.run(program)]


@pytest.mark.parametrize(("look", "num_threads"), [*zip(LOOKS, (3, 1, 2, 3), strict=True)], ids=str)
def test_random_schedules_give_the_bits_of_each_sequence_alone(
    program: list[str], shape: Shape, look: Look, num_threads: int
) -> None:
    rng = np.random.default_rng(num_threads)
    lengths = [1, 16, 700, *rng.integers(2, 600, 4).tolist()]
    sequences = [make_rows(shape, length, seed) for seed, length in enumerate(lengths)]
    ids = rng.permutation(shape.num_pages).tolist()
    pages = []
    for length in lengths:
        count = num_pages(shape, length)
        pages.append(ids[:count])
        ids = ids[count:]
    session = Session(dataclasses.replace(shape, num_threads=num_threads))
    done = [0] * len(lengths)
    owners: list[list[tuple[int, int]]] = []
    while done != lengths:
        parts, owner = [], []
        for i in rng.permutation(len(lengths)).tolist():
            if done[i] < lengths[i] and rng.random() < 0.7:
                count = min(lengths[i] - done[i], int(rng.choice([1, 1, 1, 2, 5, 16, 33, 100, 300])))
                parts.append(Rows(sequences[i][done[i] : done[i] + count], done[i], pages[i]))
                owner.append((i, done[i]))
                done[i] += count
        if parts:
            session.step(parts, look)
            owners.append(owner)
    expected = alone(program, shape, sequences, look)
    for outputs, owner in zip(session.run(program), owners, strict=True):
        for rows, (i, start) in zip(outputs, owner, strict=True):
            assert np.array_equal(rows, expected[i][start : start + len(rows)])


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_a_chunk_of_any_size_at_any_place_of_a_tile_gives_the_same_bits(
    program: list[str], shape: Shape, look: Look
) -> None:
    qkv = make_rows(shape, 310)
    pages = range(num_pages(shape, 310))
    session = Session(shape)
    session.step([Rows(qkv, 0, pages)], look)
    # Rows are stored again as they are; what a chunk reads of them is what the whole read.
    cuts = [
        (start, start + size)
        for start in (*range(112, 129), 250, 255, 256)
        for size in (*range(1, 20), 33, 54)
    ]
    for start, end in cuts:
        session.step([Rows(qkv[start:end], start, pages)], look)
    ((whole,), *outputs) = session.run(program)
    for (start, end), (rows,) in zip(cuts, outputs, strict=True):
        assert np.array_equal(rows, whole[start:end]), (start, end)


def test_decoding_gives_the_same_bits_alone_and_among_others(program: list[str], shape: Shape) -> None:
    """Alone the keys of a sequence are divided among threads, among others they are not."""
    lengths = [1, 17, 127, 128, 129, 255, 256, 257, 300, 511, 512, 513, 700]
    sequences = [make_rows(shape, length, length) for length in lengths]
    starts = np.concatenate([[0], np.cumsum([num_pages(shape, length) for length in lengths])])
    pages = [range(*bounds) for bounds in itertools.pairwise(starts.tolist())]
    last = [Rows(qkv[-1:], len(qkv) - 1, ids) for qkv, ids in zip(sequences, pages, strict=True)]
    outputs = {}
    for num_threads in (1, 2, 5):
        session = Session(dataclasses.replace(shape, num_threads=num_threads))
        session.step([Rows(qkv, 0, ids) for qkv, ids in zip(sequences, pages, strict=True)], Look())
        session.step(last, Look())
        for part in last:
            session.step([part], Look())
        prefill, together, *single = session.run(program)
        for i, rows in enumerate(prefill):
            assert np.array_equal(together[i], rows[-1:])
            assert np.array_equal(single[i][0], rows[-1:])
        outputs[num_threads] = np.concatenate(prefill)
    assert np.array_equal(outputs[1], outputs[2])
    assert np.array_equal(outputs[1], outputs[5])


@pytest.mark.parametrize("num_shared", [64, 256, 320, 576])
@pytest.mark.parametrize("look", [Look(), Look(window=300)], ids=str)
def test_sequences_that_share_pages_get_the_bits_of_their_own(
    program: list[str], shape: Shape, look: Look, num_shared: int
) -> None:
    prefix = make_rows(shape, num_shared, 1)
    tails = [make_rows(shape, length, 2 + length) for length in (1, 2, 3, 40, 64, 100, 255, 1, 9, 30, 31, 32)]
    tails += [make_rows(shape, 5, 90 + i) for i in range(12)]
    shared = list(range(num_shared // shape.page_size))
    free = itertools.count(len(shared))
    pages = [[*shared, *itertools.islice(free, num_pages(shape, len(tail)))] for tail in tails]
    session = Session(shape)
    session.step([Rows(np.concatenate([prefix, tails[0]]), 0, pages[0])], look)
    session.step([Rows(tail, num_shared, ids) for tail, ids in zip(tails[1:], pages[1:], strict=True)], look)
    session.step(
        [Rows(tail[-1:], num_shared + len(tail) - 1, ids) for tail, ids in zip(tails, pages, strict=True)],
        look,
    )
    first, others, decoded = session.run(program)
    whole = alone(program, shape, [np.concatenate([prefix, tail]) for tail in tails], look)
    expected = [rows[num_shared:] for rows in whole]
    assert np.array_equal(first[0][num_shared:], expected[0])
    for rows, own in zip(others, expected[1:], strict=True):
        assert np.array_equal(rows, own)
    for rows, own in zip(decoded, expected, strict=True):
        assert np.array_equal(rows, own[-1:])


# 4 chunks of 256 keys are shared and one is each sequence's own; a window of 512 hides the first two.
@pytest.mark.parametrize(("window", "once", "each"), [(0, 4, 5), (512, 2, 3)])
def test_pages_that_sequences_share_are_read_once_in_a_step(
    program: list[str], window: int, once: int, each: int
) -> None:
    """Once for each tile of 16 sequences, whose rows fill the registers."""
    shape = Shape(num_heads=3, num_pages=1)

    def num_reads(*parts: tuple[int, list[int]]) -> int:
        return Session(shape).count_reads(program, parts, window)

    def sequence(number: int) -> tuple[int, list[int]]:
        return 1030 + number, [*range(64), 64 + 2 * number, 65 + 2 * number]

    assert num_reads(sequence(0)) == each
    assert num_reads(*map(sequence, range(10))) == once + 10
    assert num_reads(*map(sequence, range(30))) == 2 * once + 30
    apart = [
        (length, [200 + number, *pages[1:]])
        for number, (length, pages) in enumerate(map(sequence, range(10)))
    ]
    assert num_reads(*apart) == 10 * each


@pytest.mark.parametrize("window", [300, 700])
def test_sequences_of_all_lengths_that_share_pages_under_a_window_get_their_own_bits(
    program: list[str], shape: Shape, window: int
) -> None:
    """Some see all of a shared chunk, some its end, some nothing."""
    prefix, look = make_rows(shape, 896, 1), Look(window=window)
    whole = [
        np.concatenate([prefix, make_rows(shape, n, 2 + n)]) for n in (1, 5, 60, 128, 200, 333, 500, 700)
    ]
    shared = list(range(896 // shape.page_size))
    session = Session(dataclasses.replace(shape, num_pages=400, num_threads=2))
    free = itertools.count(len(shared))
    pages = [[*shared, *itertools.islice(free, num_pages(shape, len(rows) - 896))] for rows in whole]
    session.step([Rows(whole[0], 0, pages[0])], look)
    session.step([Rows(rows[896:], 896, ids) for rows, ids in zip(whole[1:], pages[1:], strict=True)], look)
    last = [Rows(rows[-1:], len(rows) - 1, ids) for rows, ids in zip(whole, pages, strict=True)]
    session.step(last, look)
    session.step(last[2:5], look)
    *_, decoded, some = session.run(program)
    expected = [rows[-1:] for rows in alone(program, dataclasses.replace(shape, num_pages=400), whole, look)]
    assert all(np.array_equal(rows, own) for rows, own in zip(decoded, expected, strict=True))
    assert all(np.array_equal(rows, own) for rows, own in zip(some, expected[2:5], strict=True))


@pytest.mark.failure("B025")
@pytest.mark.parametrize(
    ("sick", "value"), [("q", np.nan), ("k", np.nan), ("v", np.nan), ("q", np.inf), ("v", -np.inf)]
)
def test_a_number_that_is_not_finite_spoils_its_own_rows_alone(
    program: list[str], shape: Shape, sick: str, value: float
) -> None:
    healthy, ill = make_rows(shape, 300, 1), make_rows(shape, 40, 2)
    head_dim, rotated = shape.head_dim, (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    # The second pair's angle is above zero, so both its numbers are spoilt.
    column = {"q": 1, "k": shape.num_heads * head_dim + 1, "v": rotated + 1}[sick]
    ill[20, column] = value
    pages = [list(range(3)), list(range(3, 3 + num_pages(shape, 300)))]
    session = Session(shape)
    session.step([Rows(ill, 0, pages[0]), Rows(healthy, 0, pages[1])], Look())
    session.step([Rows(ill[39:], 39, pages[0]), Rows(healthy[299:], 299, pages[1])], Look())
    (spoilt, clean), (last_spoilt, last_clean) = session.run(program)
    (expected,) = alone(program, shape, [healthy], Look())
    assert np.array_equal(clean, expected)
    assert np.array_equal(last_clean, expected[-1:])
    if sick == "q":
        assert not np.isfinite(spoilt[20, :head_dim]).any()
        assert np.isfinite(np.delete(spoilt, 20, axis=0)).all()
    else:
        heads = shape.num_heads // shape.num_kv_heads
        assert not np.isfinite(spoilt[20:, : heads * head_dim]).all(axis=1).any()
        assert not np.isfinite(last_spoilt[0, : heads * head_dim]).all()


def test_layers_keep_apart(program: list[str], shape: Shape) -> None:
    shape = dataclasses.replace(shape, num_layers=3, num_pages=20)
    rows = [make_rows(shape, 70, layer) for layer in range(3)]
    pages = range(num_pages(shape, 70))
    session = Session(shape)
    for layer in (2, 0, 1):
        session.step([Rows(rows[layer][:69], 0, pages)], Look(), layer=layer)
    for layer in range(3):
        session.step([Rows(rows[layer][69:], 69, pages)], Look(), layer=layer)
    outputs = session.run(program)[3:]
    for (output,), expected in zip(outputs, alone(program, shape, rows, Look()), strict=True):
        assert np.array_equal(output, expected[69:])
