"""Computes the rotary embedding's frequencies from a config.

Knows the scaling formulas; knows nothing of tensors. A scaling whose frequencies depend on the current length
(`dynamic`, `longrope`) is refused: keys stored earlier would have to turn again as the sequence grows, so a
prefix hit could not equal a miss.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from worker.models.config_reader import ConfigReader
from worker.models.errors import UnsupportedModel
from worker.plan.op import RopeTable


def plain_rope(theta: float, head_dim: int) -> RopeTable:
    """Return the table without any scaling."""
    return RopeTable(tuple(theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)))


def read_rope(
    config: ConfigReader, *, head_dim: int, max_positions: int, default_theta: float = 10000.0
) -> RopeTable:
    """Read `rope_theta` and `rope_scaling` and return the table.

    Raises:
        UnsupportedModel: Unknown scaling type or key, or a number is missing.
    """
    if head_dim % 2:
        raise UnsupportedModel(f"rotary embedding needs an even head_dim, got {head_dim}")
    theta = config.number("rope_theta", default_theta)
    table = plain_rope(theta, head_dim)
    plain = table.inverse_frequencies
    scaling: Mapping[str, Any] | None = config.value("rope_scaling")
    if scaling is None:
        return table
    reader = ConfigReader(scaling, what="rope_scaling")
    kind = reader.value("rope_type")
    if kind == "linear":
        factor = reader.number("factor")
        table = RopeTable(tuple(frequency / factor for frequency in plain))
    elif kind == "llama3":
        table = _llama3(plain, reader)
    elif kind == "yarn":
        table = _yarn(plain, reader, theta=theta, max_positions=max_positions)
    elif kind == "factors":
        table = _factors(plain, reader)
    else:
        raise UnsupportedModel(
            f"rope_scaling has rope_type = {kind!r}; supported: 'linear', 'llama3', 'yarn', 'factors'"
        )
    reader.finish()
    return table


def _llama3(plain: Sequence[float], scaling: ConfigReader) -> RopeTable:
    """Slow down low frequencies by `factor`, keep high ones, blend between.

    Source: Llama 3.1 reference code, apply_scaling.
    """
    factor = scaling.number("factor")
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    original = scaling.integer("original_max_position_embeddings")
    frequencies = []
    for frequency in plain:
        turns = original * frequency / (2 * math.pi)
        blend = min(1.0, max(0.0, (turns - low) / (high - low)))
        frequencies.append(frequency * (blend + (1 - blend) / factor))
    return RopeTable(tuple(frequencies))


def _yarn(plain: Sequence[float], scaling: ConfigReader, *, theta: float, max_positions: int) -> RopeTable:
    """Interpolate pairs that turn seldom, keep those that turn often, ramp linearly by pair in between.

    Source: Peng et al. 2023, "YaRN", section 3.2 and equation 15 for the attention factor.
    """
    original = scaling.integer("original_max_position_embeddings", max_positions)
    factor = scaling.number("factor")
    fast, slow = scaling.number("beta_fast", 32.0), scaling.number("beta_slow", 1.0)
    num_pairs = len(plain)

    def pair_of(turns: float) -> float:
        return num_pairs * math.log(original / (turns * 2 * math.pi)) / math.log(theta)

    first, last = pair_of(fast), pair_of(slow)
    if scaling.flag("truncate", True):
        first, last = float(math.floor(first)), float(math.ceil(last))
    first, last = max(first, 0.0), min(last, 2.0 * num_pairs - 1)
    width = max(last - first, 0.001)
    frequencies = []
    for pair, frequency in enumerate(plain):
        interpolated = min(1.0, max(0.0, (pair - first) / width))
        frequencies.append(frequency * (1 - interpolated + interpolated / factor))
    default = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return RopeTable(tuple(frequencies), scaling.number("attention_factor", default))


def _factors(plain: Sequence[float], scaling: ConfigReader) -> RopeTable:
    """Divide each pair's frequency by its own factor, as GGUF files carry Llama 3's scaling."""
    factors = scaling.value("factors")
    if not isinstance(factors, list) or len(factors) != len(plain):
        raise UnsupportedModel(f"rope_scaling needs {len(plain)} factors, one for each rotated pair")
    return RopeTable(tuple(frequency / factor for frequency, factor in zip(plain, factors, strict=True)))
