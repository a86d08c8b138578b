"""How far what is then timed is from float32: `bench.peers` prints this before any speed.

Knows the shipped texts and our own executor; peers are not measured here.
"""

from pathlib import Path

from services.artifacts.artifact import open_artifact
from services.domain.kv_layout import KvFormat
from worker.executors.native_executor import NativeOptions, load_native_executor
from worker.quality.divergence import Divergence
from worker.quality.measure import WINDOW, measure_texts
from worker.quality.runner import Runner
from worker.quality.session import EXACT, reader_of
from worker.quality.texts import read_texts
from worker.quality.verdict import Thresholds

FEWEST_POSITIONS = 1_000
TEXT_TOKENS = 1_500
"""Asked of the texts, which are cut by an estimate of characters in a token."""


def measure(model: Path, kv: KvFormat) -> Divergence:
    """Return the divergence of `model` with int8 activations and `kv` from its own weights in float32.

    Raises:
        RuntimeError: The texts gave fewer positions than a figure needs.
    """
    artifact = open_artifact(model)
    exact = load_native_executor(artifact, model_name="float32", options=EXACT, in_floats=True)
    timed = load_native_executor(artifact, model_name="timed", options=NativeOptions(kv_format=kv))
    try:
        base, ours = (Runner(one, max_tokens=WINDOW) for one in (exact, timed))
        texts = read_texts(TEXT_TOKENS)
        _, overall = measure_texts(base, ours, reader_of(artifact), texts, lambda _: None)
    finally:
        exact.close()
        timed.close()
    if overall.num_positions < FEWEST_POSITIONS:
        raise RuntimeError(f"{overall.num_positions} positions, {FEWEST_POSITIONS} are needed")
    return overall


def holds(found: Divergence, limits: Thresholds) -> bool:
    """Whether speed may be claimed for it."""
    return found.mean_kl <= limits.max_mean_kl and found.agreement >= limits.min_agreement


def text(kv: KvFormat, found: Divergence, limits: Thresholds) -> str:
    """Return the line that stands above the speeds."""
    return (
        f"quality, {kv} KV: mean KL {found.mean_kl:.4f} (at most {limits.max_mean_kl}),"
        f" top-1 {found.agreement:.3f} (at least {limits.min_agreement}),"
        f" worst KL {found.worst_kl:.2f}, over {found.num_positions} positions:"
        f" {'holds' if holds(found, limits) else 'FAILS'}"
    )
