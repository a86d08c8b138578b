"""How far one set of logits is from another, position by position.

Knows arrays and statistics; knows nothing of models, texts or executors.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


class NoPositions(ValueError):
    """There was nothing to measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """A version beside its float32 baseline over some text, teacher-forced."""

    num_positions: int
    mean_kl: float
    """Mean Kullback-Leibler divergence of the version from the baseline, in nats a token."""
    worst_kl: float
    agreement: float
    """Share of positions whose most likely token is the same, 0..1."""
    perplexity: float
    baseline_perplexity: float


@dataclass(slots=True)
class DivergenceSum:
    """Adds positions up; `result` may be asked for at any time."""

    kl: list[Float64] = field(default_factory=list)
    num_agreed: int = 0
    log_likelihood: float = 0.0
    baseline_log_likelihood: float = 0.0

    def add(self, baseline: Float32, version: Float32, targets: NDArray[np.int32]) -> None:
        """Count positions in. baseline, version: [n, V] logits; targets: [n] the tokens that follow."""
        rows = np.arange(len(targets))
        base, ours = log_softmax(baseline), log_softmax(version)
        self.kl.append(kl_divergence(base, ours))
        self.num_agreed += int((baseline.argmax(axis=1) == version.argmax(axis=1)).sum())
        self.baseline_log_likelihood += float(base[rows, targets].sum())
        self.log_likelihood += float(ours[rows, targets].sum())

    def merge(self, other: "DivergenceSum") -> None:
        """Count in what another sum has seen."""
        self.kl += other.kl
        self.num_agreed += other.num_agreed
        self.log_likelihood += other.log_likelihood
        self.baseline_log_likelihood += other.baseline_log_likelihood

    def positions(self) -> Float64:
        """Return [n] the divergence at each position, in nats."""
        return np.concatenate(self.kl) if self.kl else np.zeros(0)

    def result(self) -> Divergence:
        """Return the statistics of what was counted.

        Raises:
            NoPositions: Nothing was counted.
        """
        values = self.positions()
        if not len(values):
            raise NoPositions("no position was measured")
        return Divergence(
            num_positions=len(values),
            mean_kl=float(values.mean()),
            worst_kl=float(values.max()),
            agreement=self.num_agreed / len(values),
            perplexity=float(np.exp(-self.log_likelihood / len(values))),
            baseline_perplexity=float(np.exp(-self.baseline_log_likelihood / len(values))),
        )


def log_softmax(logits: Float32) -> Float64:
    """Return log-probabilities. logits: [n, V]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def kl_divergence(baseline: Float64, version: Float64) -> Float64:
    """Return [n] the divergence of `version` from `baseline`, both [n, V] log-probabilities; never negative.

    Source: Kullback and Leibler 1951. Worked number: (0.5, 0.5) against (0.9, 0.1): 0.511 nats.
    """
    values: Float64 = np.maximum((np.exp(baseline) * (baseline - version)).sum(axis=1), 0.0)
    return values


def repetition_rate(ids: list[int], length: int = 4) -> float:
    """Return the share of `length`-token runs that had occurred before in the same text; 0 for short ones."""
    runs = [tuple(ids[start : start + length]) for start in range(len(ids) - length + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
