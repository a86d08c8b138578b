"""Which kernels count as tuned on a device."""

import pytest
import torch

from worker.executors import triton_tiles
from worker.executors.base import KernelUse, Tiles
from worker.executors.triton_tiles import with_tiles

USES = (
    KernelUse("embedding", "triton_bf16", 1),
    KernelUse("attention", "triton_kv-int8", 2),
    KernelUse("q+k+v", "triton_w4a16-g64", 2),
    KernelUse("o", "vendor_bf16", 2),
    KernelUse("logits", "triton_bf16", 1),
)


def test_a_kernel_is_tuned_where_its_own_table_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"linear_tiles": "2026-01-01 on some chip", "attention_tiles": "untuned"}
    monkeypatch.setattr(triton_tiles, "tuning_labels", lambda device: labels)
    found = {use.layer_kind: use.tiles for use in with_tiles(USES, torch.device("cpu"))}
    assert found == {
        "embedding": Tiles.NONE,
        "attention": Tiles.UNTUNED,
        "q+k+v": Tiles.TUNED,
        "o": Tiles.NONE,
        "logits": Tiles.TUNED,
    }


def test_nothing_else_of_a_use_changes() -> None:
    found = with_tiles(USES, torch.device("cpu"))
    assert [(use.layer_kind, use.kernel, use.count) for use in found] == [
        (use.layer_kind, use.kernel, use.count) for use in USES
    ]
