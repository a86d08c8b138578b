"""`quire quality`: what a version of a model lost against float32, with a verdict and an exit code."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from rich.table import Table

from services.artifacts.errors import ArtifactError
from services.artifacts.fetch import resolve
from services.chassis.fatal import ConfigError, FatalError
from services.commands.output import add_output_flags, console
from services.domain.kv_layout import KvFormat
from worker.executors.native.bound_plan import UnsupportedOperation
from worker.executors.native.library import KV_FORMATS, Compute
from worker.executors.native_executor import NativeOptions
from worker.quality import picture, report
from worker.quality.divergence import NoPositions
from worker.quality.session import Wanted, measure_version
from worker.quality.tasks import all_tasks
from worker.quality.texts import RECORDED_PROMPTS, read_texts
from worker.quality.verdict import read_thresholds

_EXIT_FAILS = 1
_EXIT_NO_VERDICT = 3
_PICTURE = "kl.svg"


def main(argv: Sequence[str]) -> int:
    """Measure every version; exit 1 when one fails, 3 when too little was measured for a verdict on one."""
    args = _parser().parse_args(argv)
    if args.positions is not None and args.positions < 1:
        raise ConfigError(f"--positions {args.positions}: must be at least 1")
    if args.every_task < 0:
        raise ConfigError(f"--every-task {args.every_task}: must be at least 0, which leaves tasks out")
    try:
        thresholds = read_thresholds(args.thresholds)
    except ValueError as exc:
        raise ConfigError(f"--thresholds: {exc}") from exc
    wanted = Wanted(
        texts=read_texts(args.positions),
        tasks=all_tasks()[:: args.every_task] if args.every_task else [],
        prompts=RECORDED_PROMPTS,
        # The picture shows them.
        with_layers=args.output is not None,
        thresholds=thresholds,
    )
    options = NativeOptions(
        kv_format=KvFormat(args.kv),
        compute=Compute.F32 if args.compute == "fp32" else Compute.INT8,
        num_threads=args.threads,
    )
    versions = []
    try:
        baseline = resolve(args.baseline) if args.baseline else None
        # What loading a model logs must not stand before the JSON.
        with redirect_stdout(sys.stderr), console(stderr=True).status("measuring") as status:

            def progress(text: str) -> None:
                status.update(text)

            for name in args.model:
                versions.append(measure_version(name, resolve(name), baseline, options, wanted, progress))
    except NoPositions as exc:
        raise ConfigError("the tokeniser makes no two tokens of any text: ask for more --positions") from exc
    except (ArtifactError, UnsupportedOperation) as exc:
        raise FatalError(str(exc)) from exc
    if args.json:
        print(report.as_json(versions), end="")
    else:
        _show(versions)
    if args.output is not None:
        _write(versions, args.output)
    if any(version.fails for version in versions):
        return _EXIT_FAILS
    return 0 if all(version.passes for version in versions) else _EXIT_NO_VERDICT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quire quality",
        description="Measure versions of a model against float32: divergence over text, right answers to"
        " tasks that a machine checks, repetition, and recorded outputs that a later diff compares. Exits"
        " with 0 when every version passes, 1 when one fails, 3 when too little was measured to say.",
        epilog="examples:\n  quire quality smollm2-135m-instruct --kv int8 -o report\n"
        "  quire quality ./int4-awq ./int4-rtn --baseline smollm2-135m-instruct -o report",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="+", help="known name, model folder or GGUF file")
    parser.add_argument("--baseline", help="model held against, in float32 [each version's own weights]")
    parser.add_argument("--kv", choices=KV_FORMATS, default=KvFormat.INT8, help="KV format [int8]")
    parser.add_argument("--compute", choices=["int8", "fp32"], default="int8", help="activations [int8]")
    parser.add_argument("--threads", type=int, help="threads that compute [one per core]")
    parser.add_argument("--positions", type=int, help="about so many tokens of text, instead of all")
    parser.add_argument("--every-task", type=int, default=1, help="every Nth task; 0 leaves them out [1]")
    parser.add_argument("--thresholds", type=Path, help="TOML file of limits [the built-in ones]")
    parser.add_argument(
        "-o", "--output", type=Path, help="folder for report.md, report.json, outputs and picture"
    )
    add_output_flags(parser)
    return parser


def _show(versions: Sequence[report.Version]) -> None:
    screen = console()
    for title, head, rows in report.tables(versions):
        if not rows:
            continue
        table = Table(*head, title=title, title_justify="left", box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        screen.print(table)
        screen.print()
    for version in versions:
        screen.print(f"{version.name}: {version.verdict}")


def _write(versions: Sequence[report.Version], folder: Path) -> None:
    from services.artifacts.artifact import open_artifact

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(report.as_json(versions))
        (folder / "report.md").write_text(report.markdown(versions, _PICTURE))
        by_kind = {
            version.name: {kind: part.mean_kl for kind, part in version.measured.texts.items()}
            for version in versions
        }
        by_layer = {version.name: version.measured.layers for version in versions}
        (folder / _PICTURE).write_text(picture.draw(by_kind, by_layer))
        for version in versions:
            decode = open_artifact(resolve(version.name)).tokenizer.decode
            pairs = (("version", version.measured.outputs), ("baseline", version.measured.baseline_outputs))
            for label, outputs in pairs:
                path = folder / f"outputs-{version.digest[:12]}-{label}.jsonl"
                path.write_text(report.outputs_text(version.digest, outputs, decode))
    except OSError as exc:
        raise FatalError(f"{folder}: cannot be written ({exc.strerror or exc}); choose another -o") from exc
