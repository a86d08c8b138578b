"""A page is one dense run: its rows are all used, each once."""

import dataclasses

import pytest

from services.domain.kv_layout import KvFormat, KvLayout, KvOrder


def layout(*, num_layers: int = 3, num_kv_heads: int = 2, head_dim: int = 8, page_size: int = 4) -> KvLayout:
    return KvLayout(
        format=KvFormat.F32,
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        page_size=page_size,
    )


def test_every_row_of_a_page_belongs_to_one_layer_side_head_and_token() -> None:
    page = layout()
    rows = [
        first + head * page.head_rows + token
        for layer in range(3)
        for first in (page.key_row(layer), page.value_row(layer))
        for head in range(2)
        for token in range(4)
    ]
    assert rows == list(range(page.page_rows))
    assert page.page_bytes == page.page_rows * 8 * 4


@pytest.mark.parametrize(
    ("kv_format", "page_bytes"),
    [(KvFormat.F32, 737_280), (KvFormat.BF16, 368_640), (KvFormat.F16, 368_640), (KvFormat.INT8, 195_840)],
)
@pytest.mark.parametrize("order", KvOrder)
def test_bytes_of_a_page_of_the_small_model(kv_format: KvFormat, page_bytes: int, order: KvOrder) -> None:
    page = layout(num_layers=30, num_kv_heads=3, head_dim=64, page_size=16)
    assert dataclasses.replace(page, format=kv_format, order=order).page_bytes == page_bytes


def test_the_digest_tells_layouts_apart_and_is_pinned() -> None:
    pages = [layout(num_layers=32), layout(num_kv_heads=32), layout(head_dim=32), layout(page_size=32)]
    pages += [
        dataclasses.replace(layout(), format=kv_format, order=order)
        for kv_format in KvFormat
        for order in KvOrder
    ]
    assert len({page.digest for page in pages}) == len(pages)
    assert layout().digest == "8e2f9956d39e403f"
