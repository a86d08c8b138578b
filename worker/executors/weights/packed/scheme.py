"""Finds out from a checkpoint's `quantization_config` how its matrices are packed.

Knows which formats are read; each lies in a module of its own.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from services.artifacts.tensors import TensorRef
from worker.executors.weights.packed.awq import read_awq
from worker.executors.weights.packed.compressed_tensors import read_compressed_tensors
from worker.executors.weights.packed.gptq import read_gptq
from worker.executors.weights.packed.matrix import PackedMatrix
from worker.models.config_reader import ConfigReader
from worker.models.errors import UnsupportedModel


class Scheme(Protocol):
    """How one checkpoint packs its matrices."""

    @property
    def widest_bits(self) -> int:
        """Bits of a code, of the widest ones where they differ."""

    def take(self, module: str, tensors: dict[str, TensorRef], shape: tuple[int, int]) -> PackedMatrix | None:
        """Remove a module's tensors from `tensors` and return its matrix; None when it is not packed.

        Args:
            module: Name that the tensors begin with, such as `model.layers.0.mlp.up_proj`.
            tensors: What the file holds and nobody has taken yet.
            shape: (out, in) of the parameter.

        Raises:
            ArtifactError: A part is missing or of the wrong shape or type; names file and tensor.
        """

    def is_ignorable(self, tensor: TensorRef) -> bool:
        """Whether a tensor that no parameter wants changes nothing."""


_READERS: dict[str, Callable[[ConfigReader], Scheme]] = {
    "awq": read_awq,
    "gptq": read_gptq,
    "compressed-tensors": read_compressed_tensors,
}


def read_scheme(config: Mapping[str, Any]) -> Scheme | None:
    """Return how a model of this config is packed, None when it is not.

    Raises:
        UnsupportedModel: In a way that we do not read; names the key.
    """
    settings = config.get("quantization_config")
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        raise UnsupportedModel("quantization_config is not an object")
    reader = ConfigReader(settings, what="quantization_config")
    method = reader.value("quant_method")
    if method not in _READERS:
        raise UnsupportedModel(
            f"quantization_config has quant_method = {method!r}; supported: {', '.join(_READERS)}"
        )
    return _READERS[method](reader)
