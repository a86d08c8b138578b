"""Which kernels count as tuned on a device."""

from importlib import import_module
from pathlib import Path

import pytest
import torch
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.interpreter import InterpretedFunction

from worker import kernels
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


def test_no_kernel_looks_for_tiles_when_it_is_launched() -> None:
    """Nothing is tuned while serving: none is wrapped in Triton's own tuner or heuristics."""
    names = [path.stem for path in Path(kernels.__path__[0]).glob("*_triton.py")]
    members = [member for name in names for member in vars(import_module(f"worker.kernels.{name}")).values()]
    assert any(isinstance(member, InterpretedFunction) for member in members)
    assert not [member for member in members if isinstance(member, (Autotuner, Heuristics))]


def test_nothing_else_of_a_use_changes() -> None:
    found = with_tiles(USES, torch.device("cpu"))
    assert [(use.layer_kind, use.kernel, use.count) for use in found] == [
        (use.layer_kind, use.kernel, use.count) for use in USES
    ]
