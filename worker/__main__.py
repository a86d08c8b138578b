"""The worker process: configuration, signals and exit codes; `worker.app` does the rest."""

import sys

from services.chassis.config import load
from services.chassis.fatal import entry
from services.chassis.lifecycle import Lifecycle, run
from services.chassis.logging import configure_logging
from services.chassis.telemetry import configure_tracing
from services.chassis.tls import load_tls
from worker.app import Worker
from worker.config import WorkerConfig

_EXAMPLES = """examples:
  quire worker --model mine=/models/mine --scheduler 10.0.0.7:50052 --kvmanager 10.0.0.7:50053
  quire worker --model mine=/models/mine --kv-memory 2GiB --threads 2 --port 50061 --probe-port 9111
  quire worker --model sim --executor sim      no weights: answers are made up
"""


def main() -> int:
    """Run one worker until it is told to stop; return the exit code.

    Raises:
        FatalError: For `entry` to show.
    """
    config = load(WorkerConfig, "worker", examples=_EXAMPLES)
    tls = load_tls("worker")
    configure_logging(config.name, level=config.log_level)
    flush_spans = configure_tracing(config.name, config.trace)

    async def serve(lifecycle: Lifecycle) -> None:
        await Worker(config, lifecycle, tls=tls).run()

    try:
        return run(config.name, serve, drain_limit_s=config.drain_limit_s)
    finally:
        flush_spans()


if __name__ == "__main__":
    sys.exit(entry(main))
