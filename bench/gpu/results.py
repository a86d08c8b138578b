"""What a run leaves: one JSON file and the same as text, named by chip and date.

Knows files and versions; knows nothing of how a row came about.
"""

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Any

from bench.gpu.goals import Row, Skipped, as_markdown

FOLDER = Path(__file__).parents[1] / "results"
SERVING = "serving"
"""The part without which a run is not good: the worker over gRPC."""


@dataclass(slots=True)
class Run:
    """Everything that one run found, written anew after every check and part, so that a cut leaves it."""

    machine: Mapping[str, Any]
    began: datetime
    folder: Path
    checks: dict[str, str] = field(default_factory=dict)
    """By name: `ok`, or what is wrong."""
    wrong: set[str] = field(default_factory=set)
    """Checks that failed in more than last bits."""
    rows: list[Row] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Lines of what raised an error."""
    rates: dict[str, float] = field(default_factory=dict)
    """Measured, per second: bytes of a copy, operations of the vendor's products."""
    serving: dict[str, Any] = field(default_factory=dict)
    """What the worker over gRPC answered."""

    @property
    def is_good(self) -> bool:
        """Whether all that ran was right, every row reached its floor and the worker was not left out."""
        wrong = [text for text in self.checks.values() if text != "ok"]
        wrong += [each.name for each in self.skipped if each.name == SERVING]
        return not (wrong or self.failed or any(row.verdict == "BELOW FLOOR" for row in self.rows))

    def write(self) -> Path:
        """Write both files and return the JSON's path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        chip = "-".join(str(self.machine["chip"]).lower().split())
        path = self.folder / f"gpu-{chip}-{self.began:%Y%m%dT%H%M%SZ}.json"
        path.write_text(json.dumps(self._as_dict(), indent=1) + "\n")
        path.with_suffix(".md").write_text(self._as_text())
        return path

    def _as_dict(self) -> dict[str, Any]:
        return {
            "began": self.began.isoformat(),
            "machine": dict(self.machine),
            "rates": self.rates,
            "checks": self.checks,
            "rows": [row.as_dict() for row in self.rows],
            "skipped": [asdict(each) for each in self.skipped],
            "failed": self.failed,
            "serving": self.serving,
        }

    def _as_text(self) -> str:
        title = f"# {self.machine['chip']}, {self.began:%Y-%m-%d %H:%M} UTC\n"
        facts = ", ".join(f"{name} {value}" for name, value in self.machine.items() if name != "chip")
        wrong = [f"- {name}: {text}" for name, text in self.checks.items()]
        rest = [f"- {line}" for line in (*(each.line() for each in self.skipped), *self.failed)]
        serving = [f"- {name}: {value}" for name, value in self.serving.items()]
        parts = [title, facts + "\n", _section("Correctness", wrong), as_markdown(self.rows)]
        parts += [_section("Worker over gRPC", serving), _section("Not measured", rest)]
        return "\n".join(part for part in parts if part)


def writable(folder: Path) -> Path:
    """Return the folder, or one for temporary files where nothing can be written to it, and say so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    except OSError as exc:
        other = Path(mkdtemp(prefix="gpu-results-"))
        print(f"results go to {other}: {exc}", flush=True)
        return other


def machine(chip: str, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return what a figure depends on: chip, driver, versions and commit."""
    return {
        "chip": chip,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "python": platform.python_version(),
        **versions,
        "commit": _output("git", "rev-parse", "--short=12", "HEAD"),
    }


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


def _section(title: str, lines: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(lines) + "\n" if lines else ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else "unknown"
