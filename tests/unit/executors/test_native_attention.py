"""Native attention agrees with float64 in every shape, and a page holds what its layout says."""

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from services.domain.kv_layout import KvFormat, KvLayout, KvOrder
from tests.unit.executors.attention_probe import (
    Float32,
    Look,
    ProbeError,
    Rows,
    Session,
    Shape,
    attend,
    attention_command,
    store,
)
from tests.unit.executors.probe_targets import PROGRAMS
from worker.executors.native.library import KV_FORMATS

pytestmark = pytest.mark.timeout(1800)
"""The first test of an instruction set compiles it; of NEON, a C++ library as well."""

TOLERANCE = {KvFormat.F32: 5e-6, KvFormat.BF16: 5e-6, KvFormat.INT8: 3e-4}
"""Against float64 on keys and values as stored; int8 rounds queries and weights to 16 bits besides."""

SHAPES = [
    # heads, kv heads, head_dim, page size, rows
    (1, 1, 16, 16, 5),
    (2, 2, 24, 32, 129),
    (4, 2, 40, 16, 128),
    (9, 3, 64, 16, 140),
    (9, 3, 64, 128, 300),
    (5, 1, 80, 64, 257),
    (8, 8, 96, 32, 61),
    (16, 2, 128, 16, 140),
    (7, 7, 136, 16, 17),
    (4, 1, 256, 64, 270),
    (20, 1, 16, 16, 40),
    (72, 1, 16, 16, 33),
]
LOOKS = [
    Look(scale=1.0),
    Look(scale=1.0, window=1),
    Look(scale=1.0, window=37),
    Look(scale=1.0, window=200),
    Look(scale=1.0, soft_cap=2.0),
    Look(scale=0.4, soft_cap=0.8, window=17),
]
"""Scales are by the root of head_dim."""


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return attention_command(tmp_path_factory.getbasetemp(), request.param)


def make_rows(shape: Shape, num_rows: int, seed: int = 0) -> Float32:
    values = np.random.default_rng(seed).standard_normal((num_rows, shape.qkv_width))
    return values.astype(np.float32)


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_attention_agrees_with_float64(
    program: list[str], kv_format: KvFormat, sizes: tuple[int, ...]
) -> None:
    heads, kv_heads, head_dim, page_size, rows = sizes
    shape = Shape(
        kv_format=kv_format, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, page_size=page_size
    )
    qkv = make_rows(shape, rows)
    pages = np.random.default_rng(1).permutation(shape.num_pages)[: -(-rows // page_size)].tolist()
    session = Session(shape)
    looks = [dataclasses.replace(look, scale=look.scale * head_dim**-0.5) for look in LOOKS]
    for look in looks:
        session.step([Rows(qkv, 0, pages)], look)
    stored = store(shape, qkv)
    for look, (output,) in zip(looks, session.run(program), strict=True):
        assert np.abs(output - attend(shape, stored, look)).max() < TOLERANCE[kv_format], look


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_large_scores_and_values_keep_their_precision(program: list[str], kv_format: KvFormat) -> None:
    shape = Shape(kv_format=kv_format, head_dim=64)
    qkv = make_rows(shape, 300)
    qkv[:, :] *= np.exp(np.random.default_rng(2).normal(0, 1.5, (300, 1))).astype(np.float32)
    look = Look(scale=1.0)
    session = Session(shape)
    session.step([Rows(qkv, 0, range(19))], look)
    expected = attend(shape, store(shape, qkv), look)
    error = np.abs(session.run(program)[0][0] - expected) / np.abs(qkv[:, -64:]).max()
    assert error.max() < 10 * TOLERANCE[kv_format]


@pytest.mark.failure("B121")
@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_rows_of_zeros_give_zeros(program: list[str], kv_format: KvFormat) -> None:
    shape = Shape(kv_format=kv_format)
    session = Session(shape)
    session.step([Rows(np.zeros((20, shape.qkv_width), np.float32), 0, [3, 1])], Look())
    assert not session.run(program)[0][0].any()


@dataclass(frozen=True)
class PageSide:
    """Raw numbers and scales of one layer, head and side of a page: [page_size, head_dim] and [page_size]."""

    items: NDArray[np.unsignedinteger]
    scales: Float32

    def numbers(self) -> Float32:
        if self.items.dtype == np.uint8:
            return self.items.view(np.int8).astype(np.float32) * self.scales[:, None]
        wide = self.items.astype(np.uint32) << (8 * (4 - self.items.itemsize))
        return wide.view(np.float32)


def read_page(shape: Shape, page: bytes, layer: int, head: int) -> list[PageSide]:
    """Take keys and values out of a page, as `kv_page.h` says that they lie."""
    item = {KvFormat.F32: np.uint32, KvFormat.BF16: np.uint16, KvFormat.INT8: np.uint8}[shape.kv_format]
    group = 1 if shape.kv_format is KvFormat.F32 else 2
    sections = np.frombuffer(page, np.uint8).reshape(shape.num_layers, shape.num_kv_heads, -1)
    items, scales = np.split(
        sections[layer, head], [2 * shape.page_size * shape.head_dim * np.dtype(item).itemsize]
    )
    keys, values = items.view(item).reshape(2, -1)
    keys = keys.reshape(-1, shape.head_dim // group, 16, group).transpose(0, 2, 1, 3)
    values = values.reshape(-1, shape.head_dim, group).transpose(0, 2, 1)
    sides = [side.reshape(shape.page_size, shape.head_dim) for side in (keys, values)]
    if not len(scales):
        return [PageSide(side, np.empty(0, np.float32)) for side in sides]
    return [PageSide(*pair) for pair in zip(sides, scales.view(np.float32).reshape(2, -1), strict=True)]


PAGE_SHAPES = [(16, 1, 16), (32, 2, 24), (16, 3, 64), (128, 1, 256)]
"""page size, kv heads, head_dim"""


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("sizes", PAGE_SHAPES, ids=str)
def test_a_page_has_the_bytes_of_its_layout(
    program: list[str], kv_format: KvFormat, sizes: tuple[int, ...]
) -> None:
    page_size, kv_heads, head_dim = sizes
    shape = Shape(
        kv_format=kv_format,
        page_size=page_size,
        num_layers=3,
        num_kv_heads=kv_heads,
        num_heads=kv_heads,
        head_dim=head_dim,
    )
    layout = KvLayout(
        format=kv_format,
        num_layers=3,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        order=KvOrder.PANELS,
    )
    qkv = make_rows(shape, page_size)
    session = Session(shape)
    session.step([Rows(qkv, 0, [5])], Look(), layer=1)
    session.dump(5)
    (page,) = session.run_dumps(program)
    assert len(page) == layout.page_bytes
    stored = store(shape, qkv)
    for head in range(kv_heads):
        keys, values = read_page(shape, page, 1, head)
        assert np.array_equal(keys.numbers(), stored.k[:, head])
        assert np.array_equal(values.numbers(), stored.v[:, head])
    others = np.frombuffer(page, np.uint8).reshape(3, -1)[[0, 2]]
    assert (others == 0xFF).all()


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_storing_a_token_leaves_every_other_number_as_it_was(program: list[str], kv_format: KvFormat) -> None:
    shape = Shape(kv_format=kv_format, page_size=32, num_layers=2, num_kv_heads=2)
    qkv = make_rows(shape, 32) * np.linspace(1, 100, 32)[:, None].astype(np.float32)
    pages = []
    for num_rows in range(1, 33):
        session = Session(shape)
        for row in range(num_rows):
            session.step([Rows(qkv[row : row + 1], row, [0])], Look(), layer=1)
        session.dump(0)
        pages += session.run_dumps(program)
    for token, (before, after) in enumerate(itertools.pairwise(pages), start=1):
        assert before[: len(before) // 2] == after[: len(before) // 2]
        others = np.arange(32) != token
        for head in range(2):
            for old, new in zip(
                read_page(shape, before, 1, head), read_page(shape, after, 1, head), strict=True
            ):
                assert np.array_equal(old.items[others], new.items[others])
                assert not np.array_equal(old.items[token], new.items[token])
                if len(old.scales):
                    assert np.array_equal(old.scales[others], new.scales[others], equal_nan=True)
                    assert old.scales[token] != new.scales[token]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(head_dim=8), "head_dim 8 is not a multiple of 8 from 16 to 256"),
        (Shape(head_dim=20), "head_dim 20 "),
        (Shape(head_dim=264), "head_dim 264 "),
        (Shape(page_size=24), "page_size 24 is not a multiple of 16 tokens"),
    ],
    ids=str,
)
def test_shapes_that_it_cannot_serve_are_refused_by_name(
    program: list[str], shape: Shape, message: str
) -> None:
    with pytest.raises(ProbeError, match=message):
        Session(shape).run(program)
