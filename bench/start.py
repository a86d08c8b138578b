"""How long a start takes: `python -m bench.start`.

Seconds from launching `quire up --demo` to the line `ready` and to the first token of the demo's answer, over
several starts. The model is in the cache already and every proxy points to a closed port, so that whatever
asks the network for something fails.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.suite import PORT_OFFSET, Noise, cpu_seconds
from services.artifacts.fetch import pull
from services.launcher.calls import EXAMPLE_PROMPT
from services.launcher.models import DEFAULT_MODEL

CLOSED = "http://127.0.0.1:9"
READY = b"\nready\n"
ASKED = f"\n> {EXAMPLE_PROMPT}\n".encode()
LIMIT_S = 300.0


def offline() -> dict[str, str]:
    """Return an environment in which nothing beyond loopback is reached through the usual doors."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), CLOSED)
    upper = {name.upper(): value for name, value in proxies.items()}
    return {**os.environ, **proxies, **upper, "no_proxy": "127.0.0.1", "PIP_NO_INDEX": "1"}


def measure(flags: Sequence[str]) -> dict[str, float]:
    """Start the suite once, end it, and return seconds.

    Raises:
        RuntimeError: It ended, or took too long, before the first token.
    """
    command = [
        sys.executable,
        "-m",
        "services.cli",
        "up",
        "--demo",
        "--port-offset",
        str(PORT_OFFSET),
        *flags,
    ]
    noise, began = Noise(), time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=offline()) as launcher:
        assert launcher.stdout is not None
        try:
            seen, ready_s = b"", 0.0
            while not seen.partition(ASKED)[2]:
                piece = os.read(launcher.stdout.fileno(), 4096)
                now = time.monotonic() - began
                seen += piece
                if not piece or now > LIMIT_S:
                    raise RuntimeError("no first token:\n" + seen.decode(errors="replace"))
                if not ready_s and READY in b"\n" + seen:
                    ready_s = now
            family = psutil.Process(launcher.pid)
            own = cpu_seconds([family, *family.children(recursive=True)])
            foreign = noise.foreign_share(own)
        finally:
            launcher.terminate()
            launcher.stdout.read()
    return {"ready_s": ready_s, "first_token_s": now, "cpu_s": own, "foreign_cpu": foreign}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="starts to measure [5]")
    parser.add_argument("--workers", type=int, default=1, help="workers to start [1]")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args(argv)
    pull(DEFAULT_MODEL)
    runs = []
    for number in range(args.runs):
        runs.append(measure(["--workers", str(args.workers)]))
        print(f"start {number + 1}  " + "  ".join(f"{k} {v:.3g}" for k, v in runs[-1].items()), flush=True)
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    print("median   " + "  ".join(f"{k} {v:.3g}" for k, v in medians.items()))
    if args.json:
        args.json.write_text(json.dumps({"runs": runs, "median": medians}, indent=1))


if __name__ == "__main__":
    main()
