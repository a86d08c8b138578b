"""Opens a version and its baseline, measures them, and closes them again: the whole of `quire quality`.

Knows executors and their options; knows nothing of terminals or files of results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from services.artifacts.artifact import ModelArtifact, open_artifact
from services.domain.kv_layout import KvFormat
from worker.executors.native.build import build
from worker.executors.native.library import Compute
from worker.executors.native_executor import NativeExecutor, NativeOptions, load_native_executor
from worker.executors.weights.loader import open_model
from worker.quality.divergence import DivergenceSum
from worker.quality.measure import (
    ANSWER_TOKENS,
    WINDOW,
    Measured,
    Progress,
    Reader,
    add_window,
    measure_tasks,
    measure_texts,
    record_outputs,
)
from worker.quality.report import Version
from worker.quality.runner import Runner
from worker.quality.tasks import Task
from worker.quality.verdict import Thresholds, judge

EXACT = NativeOptions(compute=Compute.F32, kv_format=KvFormat.F32)
"""The baseline's activations and KV: float32. Its weights are held `in_floats`: codes are packed with 16-bit
scales and offsets, which is part of what a version loses."""
LONGEST = WINDOW + ANSWER_TOKENS
LAYER_TOKENS = 128
"""Tokens of each kind of text that every layer is measured over by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to measure a version with."""

    texts: Mapping[str, str]
    """By kind."""
    tasks: Sequence[Task]
    prompts: Sequence[str]
    """Whose outputs are recorded."""
    with_layers: bool
    """Each layer alone too: its weights and products as in the version, all else as in the baseline."""
    thresholds: Thresholds


def measure_version(
    name: str, path: Path, baseline: Path | None, options: NativeOptions, wanted: Wanted, progress: Progress
) -> Version:
    """Measure the model at `path` as `options` compute it.

    Args:
        baseline: The model in float32 that it is held against; None: its own weights.

    Raises:
        ArtifactError: A model cannot be read.
        NoPositions: The texts are too short.
        UnsupportedOperation: A model has what the native executor does not compute.
    """
    artifact = open_artifact(path)
    reader = reader_of(artifact)
    source, exact_options = baseline or path, _threads_of(options, EXACT)
    exact = load_native_executor(source, model_name="baseline", options=exact_options, in_floats=True)
    executor = load_native_executor(path, model_name=name, options=options)
    try:
        base, ours = (Runner(one, max_tokens=LONGEST) for one in (exact, executor))
        texts, overall = measure_texts(base, ours, reader, wanted.texts, progress)
        left_out = [kind for kind in wanted.texts if kind not in texts]
        measured = Measured(texts=texts, overall=overall, left_out=left_out)
        measure_tasks(measured, base, ours, reader, wanted.tasks, progress=progress)
        progress("recorded outputs")
        measured.outputs = record_outputs(ours, reader, wanted.prompts)
        measured.baseline_outputs = record_outputs(base, reader, wanted.prompts)
        if wanted.with_layers:
            mixed_options = replace(exact_options, compute=options.compute)
            measured.layers = _layers(base, source, executor, mixed_options, reader, wanted.texts, progress)
    finally:
        exact.close()
        executor.close()
    return Version(
        name=name,
        digest=executor.profile.numerics,
        settings={
            "compute": "fp32" if options.compute is Compute.F32 else "int8",
            "kv": options.kv_format.value,
            "instruction set": build(options.instruction_set).instruction_set,
            "baseline": str(baseline) if baseline else "its own weights in float32",
        },
        measured=measured,
        checks=judge(measured, wanted.thresholds),
    )


def reader_of(artifact: ModelArtifact) -> Reader:
    """Return how a model reads text."""
    return Reader(artifact.tokenizer, artifact.template, artifact.eos_ids)


def _layers(
    base: Runner,
    baseline: Path,
    version: NativeExecutor,
    options: NativeOptions,
    reader: Reader,
    texts: Mapping[str, str],
    progress: Progress,
) -> list[float]:
    """Return the mean KL of the baseline with one layer from the version, layer by layer.

    Over the beginning of each kind. Floats are multiplied in float32 whatever `options` say of products:
    int8 products are that layer's alone.
    """
    windows = [window[:LAYER_TOKENS] for text in texts.values() for window in reader.windows(text)[:1]]
    exact = [list(base.forced(window)) for window in windows]
    num_layers = open_model(open_artifact(baseline))[0].plan.num_layers
    found = []
    for layer in range(num_layers):
        progress(f"layer {layer + 1}/{num_layers}")
        mixed = load_native_executor(
            baseline, model_name="layer", options=options, in_floats=True, layer_of=(layer, version)
        )
        runner, part = Runner(mixed, max_tokens=LONGEST), DivergenceSum()
        for window, logits in zip(windows, exact, strict=True):
            add_window(part, logits, runner.forced(window), window)
        found.append(part.result().mean_kl)
        mixed.close()
    return found


def _threads_of(source: NativeOptions, options: NativeOptions) -> NativeOptions:
    return replace(options, num_threads=source.num_threads, instruction_set=source.instruction_set)
