"""Says when and on what the tiles that a device takes were measured, for logs and results.

Knows both tuning tables; knows nothing of what is launched.
"""

import torch

from worker.kernels import linear_tuning, paged_attention_tuning
from worker.kernels.dtypes_triton import chip_of


def tuning_labels(device: torch.device) -> dict[str, str]:
    """Return by kind of kernel what its table says of the chip whose tiles fit; `untuned`: never measured."""
    chip = chip_of(device)
    return {"linear_tiles": linear_tuning.label(chip), "attention_tiles": paged_attention_tuning.label(chip)}
