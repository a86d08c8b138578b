"""A model's weights on a device, as the kernels read them: codes where the file has such, else dense.

Knows files' parameters, formats of products and tables of rotations; knows nothing of operations.
"""

import torch
from torch import Tensor

from worker.executors.weights.gpu_layout import GpuCodes, stack, to_gpu
from worker.executors.weights.loader import WeightSource
from worker.kernels.packed_matrix_torch import PackedMatrix
from worker.plan.op import RopeTable


class TritonWeights:
    """Weights by parameter names, each read and copied when it is first asked for."""

    def __init__(self, source: WeightSource, *, dtype: torch.dtype, device: torch.device) -> None:
        self._source, self._dtype, self._device = source, dtype, device
        self._vectors: dict[str, Tensor] = {}
        self._dense: dict[tuple[str, ...], Tensor] = {}
        self._packed: dict[tuple[str, ...], PackedMatrix] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory."""
        tensors = sum(tensor.nbytes for tensor in (*self._vectors.values(), *self._dense.values()))
        return int(tensors) + sum(matrix.num_bytes for matrix in self._packed.values())

    def vector(self, name: str) -> Tensor:
        """Return a norm's weight or a bias: float32."""
        if name not in self._vectors:
            self._vectors[name] = torch.from_numpy(self._source.read(name)).to(self._device)
        return self._vectors[name]

    def table(self, names: tuple[str, ...]) -> Tensor:
        """Return matrices stacked by rows, dense in the type of activations."""
        if names not in self._dense:
            parts = [torch.from_numpy(self._source.read(name)).to(self._dtype) for name in names]
            self._dense[names] = (torch.cat(parts) if len(parts) > 1 else parts[0]).to(self._device)
        return self._dense[names]

    def matrix(self, names: tuple[str, ...]) -> PackedMatrix:
        """Return matrices stacked by rows, for products.

        Codes of 4 or 8 bits where the file holds them in groups that the kernels have, all in one format.
        """
        if names not in self._packed:
            codes = self._codes(names)
            if codes is None:
                return PackedMatrix(self.table(names), 16)
            zeros = None if codes.zeros is None else torch.from_numpy(codes.zeros).to(self._device)
            self._packed[names] = PackedMatrix(
                torch.from_numpy(codes.codes).to(self._device),
                codes.bits,
                codes.group,
                torch.from_numpy(codes.scales).to(self._device, self._dtype),
                zeros,
            )
        return self._packed[names]

    def _codes(self, names: tuple[str, ...]) -> GpuCodes | None:
        parts: list[GpuCodes] = []
        for name in names:
            stored = self._source.read_quantized(name)
            codes = None if stored is None else to_gpu(stored)
            if codes is None:
                return None
            parts.append(codes)
        return stack(parts)


def rope_table(rope: RopeTable, max_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cos and sin [max_positions, head_dim / 2], angles in float32."""
    frequencies = torch.tensor(rope.inverse_frequencies, dtype=torch.float32)
    angles = torch.arange(max_positions, dtype=torch.float32).unsqueeze(1) * frequencies
    cos, sin = angles.cos().mul_(rope.magnitude), angles.sin().mul_(rope.magnitude)
    return cos.to(device), sin.to(device)
