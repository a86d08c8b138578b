"""Settings of a worker that chooses an executor for a tiny model."""

from pathlib import Path

from worker.config import ExecutorKind, WorkerConfig


def config(model: Path, kind: ExecutorKind = ExecutorKind.AUTO, **fields: object) -> WorkerConfig:
    return WorkerConfig(model=f"tiny={model}", executor=kind, threads=1, **fields)  # type: ignore[arg-type]
