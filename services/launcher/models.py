"""Turn what the user calls a model into a name to serve and a path, fetching it where needed.

Knows names and progress; the artifacts package knows sources and whether a model is whole.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from services.artifacts.errors import ArtifactError
from services.artifacts.fetch import pull
from services.chassis.fatal import ConfigError, FatalError
from services.launcher.sim_model import write_sim_model
from services.launcher.topology import Model

DEFAULT_MODEL = "smollm2-135m-instruct"
_TELL_EVERY_S = 2.0


def serve_name(given: str) -> tuple[str, str]:
    """Split `NAME=WHAT` or find a name for a known model, a hub model or a path; return name and what."""
    name, separator, what = given.partition("=")
    if separator and name and what:
        return name, what
    stem = Path(given.removeprefix("hf:")).name
    return (stem.removesuffix(".gguf").lower() if "/" in given or stem.endswith(".gguf") else given), given


def names(given: Sequence[str]) -> dict[str, str]:
    """Return what each served name stands for.

    Raises:
        ConfigError: Two models would have the same name.
    """
    found: dict[str, str] = {}
    for name, what in map(serve_name, given or (DEFAULT_MODEL,)):
        if name in found:
            raise ConfigError(f"--model names {name} twice: give one of them another name, NAME=PATH")
        found[name] = what
    return found


def find_models(
    given: Sequence[str], cache: Path, console: Console, *, folder: Path, sim: bool
) -> tuple[Model, ...]:
    """Resolve all models to serve; a simulation makes do with a name when the files cannot be had.

    Args:
        folder: Where the stand-in of a model without files is written.

    Raises:
        FatalError: A model is damaged, unknown or cannot be fetched.
    """
    models = []
    for name, what in names(given).items():
        try:
            models.append(Model(name, fetch(what, cache, console).resolve()))
        except ArtifactError as exc:
            if not sim:
                raise FatalError(str(exc)) from exc
            console.print(f"{name}: simulated by name only ({exc})", soft_wrap=True, markup=False)
            models.append(Model(name, write_sim_model(folder / name)))
    return tuple(models)


def fetch(what: str, cache: Path, console: Console, *, force: bool = False) -> Path:
    """Return the path of a model, showing the progress when it has to be fetched.

    Raises:
        ArtifactError: It cannot be had, or is damaged.
    """
    if console.is_terminal:
        return _fetch_with_bar(what, cache, console, force)
    return pull(what, cache, _plain_progress(what), force=force)


def _fetch_with_bar(what: str, cache: Path, console: Console, force: bool) -> Path:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def tell(done_bytes: int, total_bytes: int, step: str) -> None:
            bar.update(task, completed=done_bytes, total=total_bytes or None, description=f"{what}: {step}")

        return pull(what, cache, tell, force=force)


def _plain_progress(what: str) -> Callable[[int, int, str], None]:
    last_told, last_step = 0.0, ""

    def tell(done_bytes: int, total_bytes: int, step: str) -> None:
        nonlocal last_told, last_step
        now = time.monotonic()
        if step != last_step or now - last_told > _TELL_EVERY_S:
            last_told, last_step = now, step
            print(
                f"{what}: {step}, {done_bytes / 1e6:.1f} of {total_bytes / 1e6:.1f} MB",
                file=sys.stderr,
                flush=True,
            )

    return tell
