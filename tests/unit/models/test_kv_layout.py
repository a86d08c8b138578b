"""A page is one dense run: its rows are all used, each once."""

from services.domain.kv_layout import KvFormat, KvLayout


def layout(**changes: int) -> KvLayout:
    sizes = {"num_layers": 3, "num_kv_heads": 2, "head_dim": 8, "page_size": 4, **changes}
    return KvLayout(format=KvFormat.F32, **sizes)


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


def test_a_page_of_the_small_model_takes_737280_bytes() -> None:
    assert layout(num_layers=30, num_kv_heads=3, head_dim=64, page_size=16).page_bytes == 737_280


def test_the_digest_tells_layouts_apart_and_is_pinned() -> None:
    digests = {
        layout(**{name: 32}).digest for name in ("num_layers", "num_kv_heads", "head_dim", "page_size")
    }
    assert len(digests | {layout().digest}) == 5
    assert layout().digest == "b606cea6ef7a5d84"
