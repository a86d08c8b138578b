"""Says of what a model runs on a GPU whether the tiles it is launched with were measured there.

Knows which kernels take tiles from a tuning table; knows nothing of the tables' contents.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch

from worker.executors.base import KernelUse, Tiles
from worker.kernels.linear_tuning import UNTUNED
from worker.kernels.tuning_labels import tuning_labels


def with_tiles(uses: Iterable[KernelUse], device: torch.device) -> tuple[KernelUse, ...]:
    """Return the same uses with their tiles; a look-up has none, nor has what the vendor's library does."""
    labels = tuning_labels(device)

    def tiles_of(use: KernelUse) -> Tiles:
        if use.layer_kind == "embedding" or not use.kernel.startswith("triton_"):
            return Tiles.NONE
        table = "attention_tiles" if use.layer_kind == "attention" else "linear_tiles"
        return Tiles.UNTUNED if labels[table] == UNTUNED else Tiles.TUNED

    return tuple(replace(use, tiles=tiles_of(use)) for use in uses)
