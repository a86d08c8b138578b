"""What ranks of one model exchange inside a step, through `torch.distributed`: NCCL on GPUs, gloo on the CPU.

Sums are added up here, in the order of ranks, from what all ranks sent: a library's own all-reduce adds in an
order that depends on the size of the message, and a row's bits would depend on the rows beside it. Knows
tensors and ranks; knows nothing of plans, batches or who started the ranks.

Source: He et al. 2025, "Defeating Nondeterminism in LLM Inference", on batch invariance.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

MEET_LIMIT_S = 120.0
"""Seconds in which all ranks must have come that have loaded their shares."""
_LOOPBACK = "127.0.0.1"


class Ranks:
    """This process among all ranks. Every rank calls the same methods in the same order."""

    def __init__(self, rank: int, size: int, *, device: str, limit_s: float) -> None:
        """Args:
        rank: This process's, from 0.
        size: Ranks in all.
        device: Of the tensors that are exchanged, `cpu` or `cuda:n`.
        limit_s: Seconds for which the other ranks are waited for, in any exchange of a step.
        """
        self.rank, self.size = rank, size
        self._device, self._limit_s = torch.device(device), limit_s
        self._received: dict[torch.dtype, Tensor] = {}
        self._total: Tensor | None = None
        self._group: Any = None

    def join(self, store: Path) -> None:
        """Meet all other ranks, once.

        Args:
            store: A file that all ranks name and none has written before.

        Raises:
            RuntimeError: They did not all come in `MEET_LIMIT_S`.
        """
        make = _over_nccl if self._device.type == "cuda" else _over_gloo
        meeting = dist.FileStore(str(store), self.size)
        self._group = make(meeting, self.rank, self.size, timedelta(seconds=MEET_LIMIT_S))

    def bound(self) -> None:
        """Wait for no longer than the limit in every exchange from now on; before, it is `MEET_LIMIT_S`."""
        self._group._set_default_timeout(timedelta(seconds=self._limit_s))

    def reserve(self, count: int, dtype: torch.dtype) -> None:
        """Make memory for exchanges of `count` numbers, unless there is; captured graphs need it to stay."""
        self._received[dtype] = self._room(self._received.get(dtype), self.size * count, dtype)
        if dtype is not torch.float32:
            self._total = self._room(self._total, count, torch.float32)

    def sum(self, x: Tensor, out: Tensor) -> None:
        """Write the sum of all ranks' x: added up in float32 from rank 0 on, then rounded once.

        x, out: [rows, width], contiguous, not overlapping.

        Raises:
            RuntimeError: A rank is gone, or did not come in time.
        """
        parts = self._all(x)
        if x.dtype is torch.float32:
            total = out.copy_(parts[0])
            for part in parts[1:]:
                total.add_(part)
            return
        assert self._total is not None, "made with the room for all parts"
        total = self._total[: x.numel()].view(x.shape).copy_(parts[0])
        for part in parts[1:]:
            total.add_(part)
        out.copy_(total)

    def gather(self, x: Tensor, out: Tensor) -> None:
        """Write all ranks' x side by side. x: [rows, width]; out: [rows, size * width], contiguous.

        Raises:
            RuntimeError: As `sum`.
        """
        out.view(len(x), self.size, x.shape[1]).copy_(self._all(x).transpose(0, 1))

    def share(self, x: Tensor) -> None:
        """Write rank 0's x over every rank's. x: [count], contiguous.

        Raises:
            RuntimeError: As `sum`.
        """
        x.copy_(self._all(x)[0])

    def leave(self) -> None:
        """Exchange nothing any more, from any thread; what is under way on a GPU ends at once."""
        group, self._group = self._group, None
        if group is not None:
            group.abort() if self._device.type == "cuda" else group.shutdown()

    def _all(self, x: Tensor) -> Tensor:
        """Return every rank's x, [size, rows, width], in memory that the next exchange uses again."""
        self.reserve(x.numel(), x.dtype)
        parts = self._received[x.dtype][: self.size * x.numel()]
        self._group._allgather_base(parts, x.reshape(-1)).wait()
        return parts.view(self.size, *x.shape)

    def _room(self, buffer: Tensor | None, count: int, dtype: torch.dtype) -> Tensor:
        if buffer is not None and buffer.numel() >= count:
            return buffer
        return torch.empty(count, dtype=dtype, device=self._device)


def _over_gloo(store: dist.Store, rank: int, size: int, limit: timedelta) -> Any:
    options = dist.ProcessGroupGloo._Options()
    # Ranks share a machine, and its name need not resolve.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
    options._timeout = limit
    return dist.ProcessGroupGloo(store, rank, size, options)


def _over_nccl(store: dist.Store, rank: int, size: int, limit: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    return dist.ProcessGroupNCCL(store, rank, size, options)
