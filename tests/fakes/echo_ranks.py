"""Ranks of which only one exists: whatever this one sends, all others are taken to have sent too.

Exchanges are torch's operations, so a fake device queues and captures them. Sums are wrong; what is launched
and what memory it takes are right.
"""

from typing import Any

import torch
from torch import Tensor

from worker.executors.torch_ranks import Ranks


class EchoGroup:
    """The methods of a `torch.distributed` process group that `Ranks` calls."""

    def _allgather_base(self, parts: Tensor, x: Tensor) -> "EchoGroup":
        parts.view(-1, x.numel()).copy_(x)
        return self

    def wait(self) -> None:
        """What is queued behind comes after it anyhow, as on a GPU."""

    def _set_default_timeout(self, limit: object) -> None:
        """Nobody is waited for."""


def echo_ranks(size: int, rank: int = 0) -> Ranks:
    """Return one of `size` ranks that has met the others."""
    ranks: Any = Ranks(rank, size, device=str(torch.device("cpu")), limit_s=1.0)
    ranks._group = EchoGroup()
    return ranks
