"""A rank other than 0, as a process: loads its share, then runs the steps that rank 0 sends.

It lives as long as rank 0's end of the socket is open, and not a moment longer, whatever it is doing. Knows
nothing of requests; nobody but rank 0 knows it.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
from pathlib import Path

import structlog

from services.artifacts.errors import ArtifactError
from services.chassis.fatal import FatalError
from services.chassis.logging import configure_logging
from worker.executors.base import ExecutorFault
from worker.executors.ranks.local import RankExecutor, load_rank
from worker.executors.ranks.messages import Channel, Closed, Kind, RankProfile, RankSpec, unpack_batch
from worker.executors.ranks.steps import Steps
from worker.plan.shard import CannotShard

_log = structlog.get_logger()


def main() -> None:
    """Serve rank 0 at the socket whose descriptor is the only argument; never returns."""
    # The signals that end a worker are rank 0's to hear: it finishes what runs, then closes the socket.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    kind, body = channel.receive()
    assert kind is Kind.SPEC
    spec = RankSpec.from_json(body)
    configure_logging(f"rank-{spec.rank}")
    frames: queue.SimpleQueue[tuple[Kind, bytearray]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, frames), name="rank-0", daemon=True).start()
    try:
        executor = load_rank(spec, Path(spec.path))
        profile = executor.profile
        channel.send_json(
            Kind.LOADED,
            RankProfile(profile.numerics, profile.namespace, profile.page_bytes, profile.weight_bytes),
        )
        steps = Steps(executor)
        while True:
            try:
                kind, body = frames.get(timeout=steps.rest_s)
            except queue.Empty:
                steps.finish()
                continue
            _obey(kind, body, executor, steps, spec, channel)
    except Exception as exc:
        # The edge of the process. What is no fault of ours is a sentence for rank 0 to show.
        _log.error("rank_failed", rank=spec.rank, exc_info=exc)
        known = (ArtifactError, CannotShard, ExecutorFault, FatalError, ModuleNotFoundError)
        with contextlib.suppress(Closed):
            channel.send_json(Kind.FAILED, str(exc) if isinstance(exc, known) else type(exc).__name__)
    # Not by the interpreter's own end: it would wait for exchanges that nobody answers any more.
    os._exit(1)


def _obey(
    kind: Kind, body: bytearray, executor: RankExecutor, steps: Steps, spec: RankSpec, channel: Channel
) -> None:
    """Do what one frame says.

    Raises:
        ExecutorFault: It cannot be done; this rank is of no more use.
    """
    match kind:
        case Kind.STEP:
            steps.run(unpack_batch(body))
        case Kind.JOIN:
            executor.join(Path(spec.store))
        case Kind.ALLOCATE:
            executor.allocate(**json.loads(body))
            channel.send(Kind.ALLOCATED)
        case Kind.RELEASE:
            steps.finish()
            executor.close()
        case _:
            raise AssertionError(f"rank 0 sends no {kind.name}")


def _read(channel: Channel, frames: "queue.SimpleQueue[tuple[Kind, bytearray]]") -> None:
    """Pass frames on until rank 0 is gone; then end this process, wherever it stands."""
    try:
        while True:
            frames.put(channel.receive())
    except Closed:
        os._exit(0)


if __name__ == "__main__":
    main()
