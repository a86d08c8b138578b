"""Starts a suite for a measurement and reads what its processes have used. Nothing is measured here."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

PORT_OFFSET = 3000


@dataclass(frozen=True, slots=True)
class RunningSuite:
    """A suite that is up."""

    process: psutil.Process
    port_offset: int = PORT_OFFSET

    @property
    def gateway(self) -> str:
        return f"127.0.0.1:{50051 + self.port_offset}"

    def processes(self) -> list[psutil.Process]:
        """The launcher and everything below it."""
        return [self.process, *self.process.children(recursive=True)]

    def named(self) -> dict[str, psutil.Process]:
        """All of them by what each runs; workers are numbered."""
        found = {"launcher": self.process}
        for process in self.process.children(recursive=True):
            command, name = process.cmdline(), process.name()
            if "-m" in command:
                name = command[command.index("-m") + 1]
                name = command[command.index("--name") + 1] if name == "worker" else name
            found[name] = process
        return found


@contextmanager
def suite(
    *flags: str, config: str = "", python_path: str = "", port_offset: int = PORT_OFFSET
) -> Iterator[RunningSuite]:
    """Run `quire up` with `flags` and the TOML text `config` until the block ends.

    Args:
        python_path: A folder that its processes look for modules in first.

    Raises:
        RuntimeError: It ended instead of becoming ready.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.toml"
        path.write_text(config)
        command = [sys.executable, "-m", "services.cli", "up", "--port-offset", str(port_offset)]
        command += ["--config", str(path), *flags]
        paths = [python_path, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as launcher:
            assert launcher.stdout is not None
            lines = []
            for line in launcher.stdout:
                lines.append(line)
                if line.strip() == "ready":
                    break
            else:
                raise RuntimeError("the suite did not come up:\n" + "".join(lines))
            try:
                yield RunningSuite(psutil.Process(launcher.pid), port_offset)
            finally:
                launcher.terminate()
                launcher.stdout.read()


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """User and system seconds that `processes` have used so far, ended threads included."""
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


class Noise:
    """How busy others kept the machine meanwhile: a figure to judge a run by."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._cpu = psutil.cpu_times()

    def foreign_share(self, own_cpu_s: float) -> float:
        """Share of all cores that went to processes other than the measured ones, 0..1."""
        now = psutil.cpu_times()
        busy = sum(getattr(now, f) - getattr(self._cpu, f) for f in ("user", "nice", "system", "softirq"))
        cores: int = psutil.cpu_count() or 1
        return max(0.0, float(busy) - own_cpu_s) / ((time.monotonic() - self._began) * cores)
